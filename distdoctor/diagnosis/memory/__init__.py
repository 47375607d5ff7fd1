"""Where the memory went."""
