"""What the user's source says around a line."""
