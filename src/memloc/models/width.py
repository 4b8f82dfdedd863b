"""How wide a model must be before more threads help."""

NARROW = 256
"""Below this width a second thread gains nothing (measured), so one is used."""
