"""What a source file shows before it runs."""
