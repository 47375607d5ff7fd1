"""Training from an endless sharded stream, measured in steps; every rank has its own reading workers."""
import argparse
import glob
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import ShardStream, write_shards


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, x):
        return self.net(x)


def prepare(rank, shards, rows, seed):
    """Rank zero writes the files, everybody learns where they are."""
    box = [None]
    if rank == 0:
        root = tempfile.mkdtemp(prefix="vanilla_")
        for name, count, s in (("train", shards, seed), ("held", 4, seed + 1)):
            os.makedirs(f"{root}/{name}")
            write_shards(f"{root}/{name}", count, rows, s)
        box = [root]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def read_all(files):
    import json
    xs, ys = [], []
    for path in files:
        with open(path) as f:
            for line in f:
                row = json.loads(line)
                xs.append(row["x"])
                ys.append(row["y"])
    return torch.tensor(xs), torch.tensor(ys)


@torch.no_grad()
def evaluate(net, x, y):
    net.eval()
    s = torch.tensor([(net(x).argmax(1) == y).sum().item(), float(len(y))])
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--shards", type=int, default=24)
    ap.add_argument("--rows", type=int, default=120)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=52)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    root = prepare(rank, args.shards, args.rows, args.seed)
    files = glob.glob(f"{root}/train/*.jsonl")
    held = read_all(sorted(glob.glob(f"{root}/held/*.jsonl"))[rank::world])

    torch.manual_seed(args.seed)
    stream = ShardStream(files, args.seed)
    loader = DataLoader(stream, batch_size=args.batch, num_workers=args.workers, persistent_workers=False)
    model = DDP(Scorer())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    seen, running = set(), 0.0
    it = iter(loader)
    for step in range(1, args.steps + 1):
        ids, x, y = next(it)
        seen.update(ids.tolist())
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        running += loss.item()
        if step % 30 == 0:
            mean = torch.tensor(running)
            dist.all_reduce(mean)
            acc = evaluate(model.module, *held)
            if rank == 0:
                print(f"step {step} loss {mean.item() / 30 / world:.4f} held-out {acc:.3f}", flush=True)
            running = 0.0
    del it

    everyone = [None] * world
    dist.all_gather_object(everyone, seen)
    if rank == 0:
        union = set().union(*everyone)
        print(f"records seen per rank {[len(s) for s in everyone]} together {len(union)} "
              f"records at {world} ranks x {args.workers} workers", flush=True)
        os.makedirs("runs/vanilla", exist_ok=True)
        torch.save({"model": model.module.state_dict(), "step": args.steps}, "runs/vanilla/last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
