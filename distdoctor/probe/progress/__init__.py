"""The stream of progress."""
