"""Hugging Face classifiers: loading them, seeing them as a stack of blocks, changing them."""
