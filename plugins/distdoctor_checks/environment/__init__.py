"""Launch and environment, DD6xx."""
