"""What a recording means: checks, findings, remedies. Pure functions, no torch, no clock, no files."""
