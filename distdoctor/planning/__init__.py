"""What `advise` predicts: memory, fit and the remedies that help, before anything runs."""
