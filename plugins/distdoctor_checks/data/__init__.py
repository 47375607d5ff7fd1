"""Data and samplers, DD3xx and DD704."""
