"""Memory, DD4xx."""
