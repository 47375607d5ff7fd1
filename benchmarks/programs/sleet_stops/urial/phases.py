import contextlib
import logging
import time

import torch
import torch.distributed as dist

log = logging.getLogger("claims")


@contextlib.contextmanager
def phase(name):
    """A named part of the run; everybody leaves it together."""
    start = time.monotonic()
    yield
    dist.barrier()
    if dist.get_rank() == 0:
        log.info("%s took %.2f s", name, time.monotonic() - start)


def gather_floats(values):
    mine = torch.tensor(values, dtype=torch.float32)
    out = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(out, mine)
    return torch.stack(out)
