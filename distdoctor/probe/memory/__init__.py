"""The stream of memory."""
