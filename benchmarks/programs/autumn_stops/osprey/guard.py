"""Repeat a step on all ranks until none of them has a reason to complain."""
import logging
import time

import torch
import torch.distributed as dist

log = logging.getLogger("guard")


class StepRejected(RuntimeError):
    pass


class CollectiveRetry:
    def __init__(self, attempts=4, backoff=1.0):
        self.attempts = attempts
        self.backoff = backoff
        self.retries = 0

    def __call__(self, fn, *args):
        """`fn` must not communicate; its errors are voted on before anybody goes ahead."""
        for attempt in range(self.attempts):
            result, problem = None, None
            try:
                result = fn(*args)
            except (OSError, StepRejected) as err:
                problem = err
                log.warning("attempt %d: %s", attempt + 1, err)
            failures = torch.tensor(int(problem is not None))
            dist.all_reduce(failures)
            if failures.item() == 0:
                return result
            self.retries += 1
            time.sleep(self.backoff * 2 ** attempt)
        raise RuntimeError(f"{int(failures)} ranks still fail after {self.attempts} attempts")
