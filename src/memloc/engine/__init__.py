"""Training: `fit.fit` trains one or several models; everything else here serves it."""
