"""Training: the loop, and several models computed in one pass."""
