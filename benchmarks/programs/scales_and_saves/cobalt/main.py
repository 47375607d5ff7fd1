"""Regress the spectrum of small random graphs; moments sharded by hand."""
import argparse
import json
import os
import shutil
import time

import torch
import torch.distributed as dist
from torch import nn

from sharded_adam import SpreadAdamW


def random_graphs(n, nodes, gen):
    p = torch.rand(n, 1, 1, generator=gen) * 0.8 + 0.1
    a = (torch.rand(n, nodes, nodes, generator=gen) < p).float().triu(1)
    a = a + a.transpose(1, 2)
    return a, torch.linalg.eigvalsh(a)[:, -3:]


class Graphormer(nn.Module):
    def __init__(self, nodes, width):
        super().__init__()
        self.inp = nn.Linear(nodes, width)
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, a):
        h = self.inp(a)
        for m in self.mix:
            h = h + torch.tanh(m(a @ h / a.shape[-1]))
        return self.out(h.mean(1))


class Journal:
    """One JSON-lines file for each process."""

    def __init__(self, folder, rank):
        os.makedirs(folder, exist_ok=True)
        self.f = open(os.path.join(folder, f"journal.{rank}.jsonl"), "w", buffering=1)

    def note(self, **kw):
        self.f.write(json.dumps({"t": round(time.time(), 3), **kw}) + "\n")

    def close(self):
        self.f.close()


def checkpoint(model, opt, folder, step, rank, world, keep):
    part = opt.save(folder, step)
    names = [None] * world
    dist.all_gather_object(names, part)
    if rank == 0:
        path = os.path.join(folder, f"weights-{step:05d}.pt")
        torch.save(model.state_dict(), path + ".part")
        os.replace(path + ".part", path)
        index = os.path.join(folder, "index.json")
        with open(index + ".part", "w") as f:
            json.dump({"step": step, "weights": os.path.basename(path), "moments": names}, f)
        os.replace(index + ".part", index)
        for name in sorted(os.listdir(folder)):
            if name.startswith("weights-"):
                at = int(name[8:13])
                if at <= step - keep:
                    os.remove(os.path.join(folder, name))
    old = os.path.join(folder, f"moments-{step - keep:05d}-{rank}of{world}.pt")
    if os.path.exists(old):
        os.remove(old)
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--nodes", type=int, default=12)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--folder", default="graph_run")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        shutil.rmtree(args.folder, ignore_errors=True)
    dist.barrier()
    journal = Journal(args.folder, rank)

    torch.manual_seed(8)
    model = Graphormer(args.nodes, 48)
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    opt = SpreadAdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(600 + rank)

    for step in range(1, args.steps + 1):
        a, target = random_graphs(args.batch, args.nodes, gen)
        loss = nn.functional.smooth_l1_loss(model(a), target)
        opt.zero_grad()
        loss.backward()
        opt.reduce()
        norm = opt.clip(1.0)
        opt.step()
        journal.note(step=step, loss=loss.item(), norm=norm)
        if step % 20 == 0:
            shared = loss.detach().clone()
            dist.all_reduce(shared)
            if rank == 0:
                print(f"{step} loss {shared.item() / world:.4f} norm {norm:.3f}", flush=True)
        if step % args.save_every == 0:
            checkpoint(model, opt, args.folder, step, rank, world, keep=2 * args.save_every)
    journal.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
