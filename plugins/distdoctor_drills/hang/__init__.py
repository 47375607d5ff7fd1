"""Hangs and collectives, DD1xx."""
