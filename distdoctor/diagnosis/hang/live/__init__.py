"""What stacks and counters of a running job tell."""
