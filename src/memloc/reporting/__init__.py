"""Tables, figures and pages made from result files; nothing here needs torch."""
