"""Starts ranks on torch's own elastic agent and watches them from outside."""
