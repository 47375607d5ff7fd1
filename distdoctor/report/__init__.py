"""A diagnosis as text, JSON, ...: one file per format, each `render(diagnosis) -> str`."""
