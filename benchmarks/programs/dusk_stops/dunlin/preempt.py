"""Notice of the end of the time slot.

Under Slurm (`--signal=B:USR1@120`) the batch step gets SIGUSR1 and passes it to the task with local id 0.
`start_slot_timer` does the same on machines without Slurm.
"""
import os
import signal
import threading

import torch
import torch.distributed as dist


class PreemptionGuard:
    def __init__(self, signum=signal.SIGUSR1):
        self._flag = threading.Event()
        signal.signal(signum, lambda *_: self._flag.set())

    def should_stop(self):
        """True on all ranks as soon as one of them got the notice."""
        flag = torch.tensor([int(self._flag.is_set())])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


def start_slot_timer(seconds):
    if os.environ.get("SLURM_JOB_ID") or int(os.environ.get("LOCAL_RANK", 0)) != 0:
        return None
    t = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    t.daemon = True
    t.start()
    return t
