"""What lies in a checkpoint, read without running anything of it and without torch."""
