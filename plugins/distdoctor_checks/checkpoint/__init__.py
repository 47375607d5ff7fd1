"""Checkpoints and resumption, DD7xx; what a resumption does to the data (DD704) is in `data`."""
