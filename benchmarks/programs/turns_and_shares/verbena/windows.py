"""Cuts an epoch's micro-batches into windows, one optimizer step each; the last window may be shorter."""
from itertools import islice


def windows(loader, size):
    feed = iter(loader)
    while chunk := list(islice(feed, size)):
        yield chunk
