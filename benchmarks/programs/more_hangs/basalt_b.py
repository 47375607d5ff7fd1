"""Score sensor tables shard by shard and keep a running global mean."""
import argparse
import io
import csv

import torch
import torch.distributed as dist
from torch import nn


class Job:
    def __enter__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        return self

    def __exit__(self, kind, value, trace):
        dist.barrier()
        dist.destroy_process_group()
        return False


def make_table(shard, rows):
    g = torch.Generator().manual_seed(100 + shard)
    out = io.StringIO()
    w = csv.writer(out)
    w.writerow(["station", "temp", "wind", "pressure"])
    for r in range(rows):
        t, v, q = torch.rand(3, generator=g).tolist()
        wind = "-" if (shard, r) == (5, 17) else f"{v:.4f}"
        w.writerow([f"s{shard}-{r}", f"{t:.4f}", wind, f"{q:.4f}"])
    return out.getvalue()


def to_number(cell):
    return float(cell) if cell not in ("", "-") else 0.0


class TableReader:
    fields = ("temp", "wind", "pressure")

    def __init__(self, text, chunk):
        self.rows = csv.DictReader(io.StringIO(text))
        self.chunk = chunk

    def __iter__(self):
        block = []
        for row in self.rows:
            block.append([to_number(row[f]) for f in self.fields])
            if len(block) == self.chunk:
                yield torch.tensor(block)
                block = []
        if block:
            yield torch.tensor(block)


class RunningMean:
    def __init__(self):
        self.total = torch.zeros(2, dtype=torch.float64)

    def merge(self, values):
        part = torch.tensor([values.sum().item(), float(values.numel())], dtype=torch.float64)
        dist.all_reduce(part)
        self.total += part

    @property
    def value(self):
        return (self.total[0] / self.total[1].clamp(min=1)).item()


@torch.no_grad()
def score(job, net, args):
    mean = RunningMean()
    for shard in range(job.rank, args.shards, job.world):
        for block in TableReader(make_table(shard, args.rows), args.chunk):
            mean.merge(net(block))
        if job.rank == 0:
            print(f"shard {shard}: mean so far {mean.value:.4f}", flush=True)
    return mean.value


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=9)
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--chunk", type=int, default=8)
    args = p.parse_args()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 1))
    with Job() as job:
        value = score(job, net, args)
        if job.rank == 0:
            print(f"global mean {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
