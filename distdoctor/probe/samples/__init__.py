"""The stream of samples."""
