"""The stream of gradients."""
