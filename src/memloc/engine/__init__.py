"""Training: `fit.fit` trains one or several models; the other modules of this folder serve it."""
