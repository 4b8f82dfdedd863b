"""What layers do to memorised labels: positions between classes, label probes, generalisation."""
