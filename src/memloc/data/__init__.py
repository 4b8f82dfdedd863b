"""Texts and labels: reads tasks, assigns wrong labels, turns texts into tokens."""
