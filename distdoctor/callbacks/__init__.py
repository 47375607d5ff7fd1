"""Callbacks that tell distdoctor when a trainer evaluates or saves: `distdoctor.callbacks.transformers`, `...lightning`."""
