"""Whether the replicas are still the same model."""
