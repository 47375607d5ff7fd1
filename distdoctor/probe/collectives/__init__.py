"""The stream of collectives."""
