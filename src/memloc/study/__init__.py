"""Studies of many runs: planning their steps, running them, and showing progress."""
