"""Runs: their folders, and how they are trained, planted or adopted."""
