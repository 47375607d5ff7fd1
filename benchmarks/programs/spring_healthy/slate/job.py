import os
import signal

import torch
import torch.distributed as dist


class StopRequest:
    """Remembers a signal. Ranks compare notes every few steps and stop at the same step."""

    def __init__(self, every=4, signum=signal.SIGUSR1):
        self.every, self.asked = every, False
        signal.signal(signum, self._on_signal)

    def _on_signal(self, *_):
        self.asked = True

    def agreed(self, step, group):
        if step % self.every:
            return False
        flag = torch.tensor([int(self.asked)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        return bool(flag.item())


class Ledger:
    """Position in the global order of samples. Independent of how many ranks read."""

    def __init__(self, n, global_batch, seed):
        self.n, self.global_batch, self.seed, self.consumed = n, global_batch, seed, 0

    def take(self, part, parts):
        epoch, at = divmod(self.consumed, self.n)
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed + epoch))
        self.consumed += self.global_batch
        rows = order[at:at + self.global_batch]
        return rows.chunk(parts)[part]


def save_atomic(path, obj):
    tmp = path + ".partial"
    torch.save(obj, tmp)
    os.replace(tmp, path)
