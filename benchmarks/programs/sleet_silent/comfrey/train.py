import argparse
import itertools
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stream import LogStream


class CrossNet(nn.Module):
    """DCN style: explicit feature crosses next to a deep tower."""

    def __init__(self, n=20, hidden=64, crosses=2):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(n, n) for _ in range(crosses))
        self.deep = nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(n + hidden, 1)

    def forward(self, x0):
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--segments", type=int, default=24)
    ap.add_argument("--pos-weight", type=float, default=1.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = DistributedDataParallel(CrossNet())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.03)
    weight = torch.tensor(args.pos_weight)
    loader = DataLoader(LogStream(args.segments, 100, seed=2), batch_size=args.batch, num_workers=args.workers, prefetch_factor=2)
    ema, t0 = None, time.time()
    for step, (ids, x, y) in enumerate(itertools.islice(loader, args.steps), 1):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y, pos_weight=weight)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"{step:4d} loss {ema:.4f} {step * args.batch * dist.get_world_size() / (time.time() - t0):.0f} rows/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
