"""Scores as pure functions: arrays in; numbers, arrays or small records out."""
