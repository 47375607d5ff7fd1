"""What the machine shows before a job is started on it."""
