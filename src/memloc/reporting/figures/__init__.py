"""Figures: described in `figures.yaml`, drawn in one of four shapes, for the page and for files."""
