"""What was saved and loaded, and by whom."""
