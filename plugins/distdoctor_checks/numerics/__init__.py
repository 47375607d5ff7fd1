"""Numerics and AMP, DD8xx."""
