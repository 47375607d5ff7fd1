import glob
import math
import os
from functools import cached_property

import torch
import torch.distributed as dist
import torch.nn.functional as F


class ShardedEvaluator:
    """Perplexity over validation files; the files are dealt out to the ranks round robin.

    With fewer files than ranks the spare ranks hold nothing and take no part in the reduction.
    """

    def __init__(self, root, rank, world, seq_len):
        files = sorted(glob.glob(os.path.join(root, "valid_*.pt")))
        self.rank = rank
        self.seq_len = seq_len
        self.files = files[rank::world]
        self.holders = [r for r in range(world) if files[r::world]]

    @cached_property
    def group(self):
        return dist.new_group(self.holders)

    def _windows(self):
        for path in self.files:
            toks = torch.load(path)
            n = (len(toks) - 1) // self.seq_len
            x = toks[: n * self.seq_len].view(n, self.seq_len)
            y = toks[1: n * self.seq_len + 1].view(n, self.seq_len)
            for i in range(0, n, 32):
                yield x[i:i + 32], y[i:i + 32]

    @torch.no_grad()
    def run(self, model):
        if not self.files:
            return float("nan")
        model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        for x, y in self._windows():
            out = model(x)
            total[0] += F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").double()
            total[1] += y.numel()
        dist.all_reduce(total, group=self.group)
        model.train()
        return math.exp(min(20.0, (total[0] / total[1]).item()))
