"""Reference models, one per file; each is a chain of named blocks, so that it can be split over ranks."""
