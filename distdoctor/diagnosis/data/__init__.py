"""Whether every rank reads the right data."""
