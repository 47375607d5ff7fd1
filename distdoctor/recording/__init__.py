"""What was seen: the words of the domain and how they lie on disk."""
