"""Gradients and parameters, DD2xx."""
