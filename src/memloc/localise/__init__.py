"""The localisers: how much each layer matters for the labels that a model memorised."""
