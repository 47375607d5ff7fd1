import contextlib
import logging
import time

import torch.distributed as dist

log = logging.getLogger("run")


@contextlib.contextmanager
def section(name, soft=(OSError,)):
    """Times a part of the run; a full disk must not kill a long training."""
    start = time.perf_counter()
    try:
        yield
        dist.barrier()
    except soft as err:
        log.warning("%s: %s", name, err)
    log.debug("%s took %.3fs", name, time.perf_counter() - start)
