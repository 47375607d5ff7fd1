import logging

import torch.distributed as dist

from storage import backoff

log = logging.getLogger(__name__)


def load_shard(store, idx, max_attempts=4):
    for attempt in range(max_attempts):
        store.stage(idx)
        if attempt == 0:
            # nobody reads before every mover has been asked
            dist.barrier()
        try:
            return store.read(idx)
        except FileNotFoundError:
            log.warning("shard %d not there yet (attempt %d)", idx, attempt + 1)
            backoff(attempt)
    raise RuntimeError(f"shard {idx} never arrived")


def iterate(store, batch_size):
    for idx in range(store.n_shards):
        x, y = load_shard(store, idx)
        for i in range(0, len(x), batch_size):
            yield x[i:i + batch_size], y[i:i + batch_size]
