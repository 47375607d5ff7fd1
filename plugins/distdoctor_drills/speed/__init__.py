"""Speed and cost, DD5xx."""
