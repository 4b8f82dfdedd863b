"""`python -m memloc` is the command line."""

from memloc.cli import main

main()
