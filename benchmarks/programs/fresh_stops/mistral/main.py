"""Hyper-parameter trials from one queue. A process takes the next trial when it is through with the last one; the queue is a
counter in the store of the job. Trials are trained alone, the results are put together at the end."""
import argparse
import itertools
import json
import time

import torch
import torch.distributed as dist
from torch import nn


def trials():
    grid = itertools.product([16, 64, 192], [1e-3, 1e-2], [0, 1, 2])
    return [{"width": w, "lr": lr, "depth": d} for w, lr, d in grid]


def spiral(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=g) * 9
    arm = torch.randint(0, 2, (n,), generator=g)
    angle = t + arm * torch.pi
    xy = torch.stack([angle.cos(), angle.sin()], 1) * t.unsqueeze(1) / 9
    return xy + 0.02 * torch.randn(n, 2, generator=g), arm


def model(width, depth):
    layers = [nn.Linear(2, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def run_trial(number, spec, args):
    torch.manual_seed(args.seed + number)
    x, y = spiral(600, args.seed)
    vx, vy = spiral(300, args.seed + 1)
    net = model(spec["width"], spec["depth"])
    optim = torch.optim.Adam(net.parameters(), lr=spec["lr"])
    steps = args.steps * (1 + 2 * spec["depth"])
    for _ in range(steps):
        take = torch.randint(0, len(x), (64,))
        loss = nn.functional.cross_entropy(net(x[take]), y[take])
        optim.zero_grad()
        loss.backward()
        optim.step()
    with torch.no_grad():
        acc = (net(vx).argmax(1) == vy).float().mean().item()
    return {"trial": number, **spec, "steps": steps, "accuracy": round(acc, 4)}, net


class Queue:
    def __init__(self, store, size):
        self.store, self.size = store, size

    def __iter__(self):
        while True:
            n = self.store.add("trials/next", 1) - 1
            if n >= self.size:
                return
            yield n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=350)
    ap.add_argument("--seed", type=int, default=70)
    ap.add_argument("--out", default="/tmp/trials.json")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    specs = trials()
    queue = Queue(dist.distributed_c10d._get_default_store(), len(specs))
    mine, best = [], None
    for n in queue:
        began = time.time()
        result, net = run_trial(n, specs[n], args)
        mine.append(result)
        if best is None or result["accuracy"] > best[0]:
            best = (result["accuracy"], n, net.state_dict())
        print(f"[{rank}] trial {n} {specs[n]} accuracy {result['accuracy']} {time.time() - began:.1f}s", flush=True)
    everything = [None] * world
    dist.all_gather_object(everything, (mine, best))
    if rank == 0:
        table = sorted((r for part, _ in everything for r in part), key=lambda r: -r["accuracy"])
        with open(args.out, "w") as f:
            json.dump(table, f, indent=1)
        top = max((b for _, b in everything if b), key=lambda b: b[0])
        torch.save(top[2], args.out + ".pt")
        print("trials per process", [len(p) for p, _ in everything], "best", table[0], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
