"""Imported by a fork server after everything else: what it has imported is neither looked through in its ranks nor copied."""

import gc

gc.collect()
gc.freeze()
