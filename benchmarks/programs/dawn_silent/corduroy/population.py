"""Population-based training: one member per process; the weak copy the strong and perturb their settings."""
import argparse
import copy
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Member:
    def __init__(self, rank):
        torch.manual_seed(200 + rank)
        self.net = nn.GRU(6, 48, batch_first=True)
        self.head = nn.Linear(48, 3)
        self.params = list(self.net.parameters()) + list(self.head.parameters())
        self.hyper = {"lr": 10 ** random.Random(rank).uniform(-3.5, -1.8), "noise": 0.05 * (rank + 1)}
        self.opt = torch.optim.Adam(self.params, lr=self.hyper["lr"])

    def predict(self, x):
        return self.head(self.net(x)[0][:, -1])

    def apply_hyper(self):
        for group in self.opt.param_groups:
            group["lr"] = self.hyper["lr"]

    def snapshot(self):
        return {"net": self.net.state_dict(), "head": self.head.state_dict(),
                "opt": copy.deepcopy(self.opt.state_dict()), "hyper": dict(self.hyper)}

    def restore(self, snap):
        self.net.load_state_dict(snap["net"])
        self.head.load_state_dict(snap["head"])
        self.opt.load_state_dict(snap["opt"])
        self.hyper = dict(snap["hyper"])


def sequences(gen, n):
    """Which of three channels carried the largest sum over the window?"""
    x = torch.randn(n, 12, 6, generator=gen)
    return x, x[:, :, :3].sum(1).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--steps", type=int, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank)
    stream = torch.Generator().manual_seed(900 + rank)
    valid = sequences(torch.Generator().manual_seed(7), 800)
    explore = random.Random(1000 + rank)
    for rnd in range(args.rounds):
        for _ in range(args.steps):
            x, y = sequences(stream, 64)
            x = x + member.hyper["noise"] * torch.randn(x.shape, generator=stream)
            loss = F.cross_entropy(member.predict(x), y)
            member.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(member.params, 1.0)
            member.opt.step()
        with torch.no_grad():
            acc = (member.predict(valid[0]).argmax(1) == valid[1]).float().mean().item()
        scores = [None] * world
        dist.all_gather_object(scores, acc)
        best, worst = max(range(world), key=scores.__getitem__), min(range(world), key=scores.__getitem__)
        package = [member.snapshot() if rank == best else None]
        dist.broadcast_object_list(package, src=best)
        if rank == worst and best != worst:
            member.restore(package[0])
            for key in member.hyper:
                member.hyper[key] *= explore.choice((0.8, 1.25))
            member.apply_hyper()
        if rank == 0:
            print(f"round {rnd} accuracy {[round(s, 3) for s in scores]} copied {best} -> {worst}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
