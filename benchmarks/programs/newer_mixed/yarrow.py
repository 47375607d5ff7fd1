"""Embedding tables split over processes; each writes its own part below one shared run name."""
import argparse
import datetime
import json
import pathlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed.nn.functional as dnn


class SplitTable(nn.Module):
    """Columns of the table are spread over the ranks; every rank looks up the whole batch."""

    def __init__(self, rows, dim):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        gen = torch.Generator().manual_seed(7 + self.rank)
        self.part = nn.Parameter(0.1 * torch.randn(rows, dim // self.world, generator=gen))

    def forward(self, ids):
        pieces = dnn.all_gather(F.embedding(ids, self.part))
        return torch.cat(pieces, -1)


class Recommender(nn.Module):
    def __init__(self, rows=60, dim=12):
        super().__init__()
        self.table = SplitTable(rows, dim)
        self.top = nn.Sequential(nn.Linear(2 * dim, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, user, item):
        return self.top(torch.cat([self.table(user), self.table(item)], 1)).squeeze(1)


def shared_name(prefix):
    box = [f"{prefix}-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def save(folder, model, step):
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.table.state_dict(), folder / f"table.{rank}.pt")
    if rank == 0:
        torch.save(model.top.state_dict(), folder / "top.pt")
    dist.barrier()
    if rank == 0:
        (folder / "done.json").write_text(json.dumps({"step": step, "parts": dist.get_world_size()}))
    dist.barrier()


def restore(folder, model):
    info = json.loads((folder / "done.json").read_text())
    assert info["parts"] == dist.get_world_size()
    model.table.load_state_dict(torch.load(folder / f"table.{dist.get_rank()}.pt", weights_only=True))
    model.top.load_state_dict(torch.load(folder / "top.pt", weights_only=True))
    return info["step"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=32)
    p.add_argument("--every", type=int, default=16)
    p.add_argument("--root", default="/tmp/yarrow_runs")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50)
    model = Recommender()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    folder = pathlib.Path(args.root) / shared_name("rec")
    gen = torch.Generator().manual_seed(51)
    for step in range(1, args.steps + 1):
        user = torch.randint(0, 30, (32,), generator=gen)
        item = torch.randint(30, 60, (32,), generator=gen)
        like = ((user + item) % 3 == 0).float()
        loss = F.binary_cross_entropy_with_logits(model(user, item), like)
        opt.zero_grad()
        loss.backward()
        model.table.part.grad /= world
        for q in model.top.parameters():
            dist.all_reduce(q.grad)
            q.grad /= world
        opt.step()
        if step % args.every == 0:
            save(folder / f"step{step}", model, step)
    back = restore(folder / f"step{args.every}", Recommender())
    if rank == 0:
        print(f"loss {loss.item():.4f}, snapshot of step {back} read again from {folder}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
