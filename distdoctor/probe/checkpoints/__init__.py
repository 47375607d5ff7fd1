"""Checkpoints: who saves and loads what, and whether it arrives."""
