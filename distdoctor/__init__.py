"""Diagnostics for distributed PyTorch training. Nothing is imported here: a rank must be able to load the probe alone."""
