import argparse
import os
import tempfile
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from reporter import Reporter, Collector


class Phases:
    def __init__(self):
        self.total = {}

    @contextmanager
    def __call__(self, name):
        t = time.perf_counter()
        yield
        self.total[name] = self.total.get(name, 0.0) + time.perf_counter() - t


class Mixer(nn.Module):
    def __init__(self, patches, dim, depth, classes):
        super().__init__()
        self.inp = nn.Linear(16, dim)
        self.tok = nn.ModuleList(nn.Sequential(nn.Linear(patches, patches), nn.GELU()) for _ in range(depth))
        self.chn = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.inp(x)
        for t, c in zip(self.tok, self.chn):
            h = h + t(h.transpose(1, 2)).transpose(1, 2)
            h = h + c(h)
        return self.out(h.mean(1))


def make_data(n, patches, classes, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, patches, 16, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return proto[y] * 0.4 + torch.randn(n, patches, 16, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=2000)
    ap.add_argument("--patches", type=int, default=24)
    ap.add_argument("--classes", type=int, default=10)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--batch", type=int, default=50)
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--report-seconds", type=float, default=0.15)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    x, y = make_data(args.samples, args.patches, args.classes, args.seed)
    x, y = x[rank::world], y[rank::world]
    model = Mixer(args.patches, args.dim, args.depth, args.classes)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    reporter = None
    if rank == 0:
        out = os.path.join(tempfile.mkdtemp(prefix="tigris_"), "metrics.jsonl")
        reporter = Reporter(Collector(out), every=args.report_seconds)
        reporter.start()

    phase = Phases()
    began = time.perf_counter()
    seen = 0
    for step in range(args.steps):
        at = (seen // world) % (len(x) - args.batch)
        with phase("compute"):
            loss = nn.functional.cross_entropy(model(x[at:at + args.batch]), y[at:at + args.batch])
            opt.zero_grad()
            loss.backward()
        with phase("sync"):
            flat = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / world, [p.grad for p in model.parameters()])
        with phase("update"):
            opt.step()
        seen += args.batch * world
        if reporter is not None:
            with phase("report"):
                reporter.add(step=step, loss=round(loss.item(), 4), seen=seen)
        if rank == 0 and (step + 1) % 16 == 0:
            rate = seen / (time.perf_counter() - began)
            print(f"step {step + 1:4d} loss {loss.item():.4f} {rate:.0f} samples/s", flush=True)
    if reporter is not None:
        reporter.close()
        print("lines written:", reporter.sent, flush=True)
    dist.barrier()
    print(f"rank {rank} " + " ".join(f"{k}={v:.1f}s" for k, v in phase.total.items()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
