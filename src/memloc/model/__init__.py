"""Hugging Face models: loading them, viewing them as a stack of blocks, exchanging their parts."""
