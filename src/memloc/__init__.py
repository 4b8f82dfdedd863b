"""memloc: which layers of a fine-tuned transformer hold the labels it memorised?"""
