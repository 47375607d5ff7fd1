"""Multi-task dense prediction: one trunk for everybody, a head per task, not every process has every head.

    torchrun --nproc-per-node 3 main.py
"""
import argparse
import json
import pathlib

import torch
import torch.distributed as dist

from nets import Trunk, make_head, target_for, task_loss
from topology import LAYOUT, average_, open_communicators, tasks_of


def curriculum(step, rank, args):
    """The easy tasks first; the others join when the trunk has settled."""
    start = {"depth": args.depth_from, "edges": args.edges_from}
    return [n for n in tasks_of(rank) if step >= start.get(n, 0)]


def images_for(step, rank, args):
    g = torch.Generator().manual_seed(args.seed * 100003 + step * 64 + rank)
    return torch.randn(args.batch, 3, 16, 16, generator=g)


def build(args, rank):
    torch.manual_seed(args.seed)
    trunk = Trunk()
    heads = {}
    for name in LAYOUT:
        head = make_head(name)
        if name in tasks_of(rank):
            heads[name] = head
    params = list(trunk.parameters()) + [p for h in heads.values() for p in h.parameters()]
    return trunk, heads, torch.optim.SGD(params, lr=args.lr, momentum=0.9)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--depth-from", type=int, default=25)
    ap.add_argument("--edges-from", type=int, default=50)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--out", default="/tmp/dense_run")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 3, "the layout is for three processes"
    open_communicators()
    trunk, heads, optim = build(args, rank)
    history = []
    for step in range(args.steps):
        images = images_for(step, rank, args)
        active = curriculum(step, rank, args)
        optim.zero_grad(set_to_none=True)
        features = trunk(images)
        losses = {n: task_loss(n, heads[n](features), target_for(n, images)) for n in active}
        sum(losses.values()).backward()
        for n in active:
            average_([p.grad for p in heads[n].parameters()], n)
        flat = torch.cat([p.grad.flatten() for p in trunk.parameters()])
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for p in trunk.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        optim.step()
        if rank == 0:
            history.append({n: round(v.item(), 4) for n, v in losses.items()})
            if step % 10 == 0:
                print(f"step {step:3d} {history[-1]}", flush=True)

    parts = [None] * world
    dist.all_gather_object(parts, {n: h.state_dict() for n, h in heads.items()} if rank else None)
    if rank == 0:
        out = pathlib.Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        every = {"trunk": trunk.state_dict(), "heads": {n: h.state_dict() for n, h in heads.items()}}
        for part in parts[1:]:
            for n, sd in part.items():
                every["heads"].setdefault(n, sd)
        torch.save(every, out / "model.pt")
        (out / "history.json").write_text(json.dumps(history))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
