"""Anything that looks at a run and leaves tables."""
