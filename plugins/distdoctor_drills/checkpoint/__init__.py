"""Drills of checkpoints and resumption, DD7xx."""
