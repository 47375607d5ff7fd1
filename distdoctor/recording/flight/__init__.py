"""torch's flight recorder dumps, read as a recording."""
