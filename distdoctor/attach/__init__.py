"""Looks at a job that already runs: processes, stacks, flight recorders."""
