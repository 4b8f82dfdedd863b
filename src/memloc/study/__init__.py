"""Experiments over many runs: what is planted, what is planned, and how it runs."""
