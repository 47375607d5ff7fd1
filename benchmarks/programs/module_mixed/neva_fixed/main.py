import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from muon import Muon
from net import MultiDepth


class DepthSchedule:
    """Starts at full depth, then alternates between full and truncated passes."""

    def __init__(self, full, warmup, shallow):
        self.full, self.warmup, self.shallow = full, warmup, shallow

    def at(self, step):
        if step < self.warmup or step % 2 == 0:
            return self.full
        return self.shallow


def split_params(model):
    mats = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks")]
    ids = {id(p) for p in mats}
    return mats, [p for p in model.parameters() if id(p) not in ids]


def batches(rank, n=32):
    g = torch.Generator().manual_seed(50 + rank)
    proto = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    while True:
        y = torch.randint(0, 4, (n,), generator=g)
        yield proto[y] + 0.8 * torch.randn(n, 16, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--warmup", type=int, default=6)
    ap.add_argument("--shallow", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    optim_group = dist.new_group()
    torch.manual_seed(12)
    core = MultiDepth()
    model = DDP(core, find_unused_parameters=True)
    mats, rest = split_params(core)
    opts = [Muon(mats, group=optim_group), torch.optim.AdamW(rest, lr=3e-3)]
    sched = DepthSchedule(len(core.blocks), args.warmup, args.shallow)
    data = batches(dist.get_rank())
    for step in range(args.steps):
        x, y = next(data)
        loss = F.cross_entropy(model(x, sched.at(step)), y)
        for o in opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        for o in opts:
            o.step()
        if step % 6 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
