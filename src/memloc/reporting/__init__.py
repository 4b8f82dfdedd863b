"""Tables, figures and pages from result files; nothing here needs torch."""
