"""Reference data sets, one kind per file; each factory returns a training set and a test set."""
