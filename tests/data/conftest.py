"""Settings of the property tests in this folder."""

from hypothesis import settings

# A slow machine is no counterexample.
settings.register_profile("memloc", deadline=None)
settings.load_profile("memloc")
