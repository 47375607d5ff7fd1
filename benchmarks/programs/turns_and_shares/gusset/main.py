"""Risk model over several hospitals: data stay on site, gradients travel."""
import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from descent import SpreadLoss, descend

FEATURES = 10


def patients(site, count, seed):
    truth = torch.randn(FEATURES, generator=torch.Generator().manual_seed(seed))
    g = torch.Generator().manual_seed(seed * 31 + site)
    shift = 0.6 * torch.randn(FEATURES, generator=g)
    x = torch.randn(count, FEATURES, generator=g) * (1.0 + 0.8 * site) + shift
    score = x @ truth + 0.8 * x[:, 0] * x[:, 1] - 0.4 * x[:, 2].square()
    y = (torch.rand(count, generator=g) < torch.sigmoid(1.5 * score)).float()
    return x, y


class Risk(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--patients", type=int, default=400)
    ap.add_argument("--width", type=int, default=16)
    ap.add_argument("--budget", type=int, default=160)
    ap.add_argument("--ridge", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=12)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "risk"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Risk(args.width)
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    x, y = patients(rank, args.patients, args.seed)

    def closure():
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.binary_cross_entropy_with_logits(model(x), y) + args.ridge * penalty

    trace = []

    def report(turn, calls, value, step):
        trace.append({"turn": turn, "calls": calls, "value": value, "step": step})
        if rank == 0 and turn % 10 == 0:
            print(f"turn {turn} calls {calls} objective {value:.4f} step {step:.3f}", flush=True)

    problem = SpreadLoss(model, closure)
    _, value, turns = descend(problem, args.budget, report=report)

    hits = torch.tensor([((model(x) > 0).float() == y).sum().item(), len(y)], dtype=torch.float)
    dist.all_reduce(hits)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.out, "risk.pt"))
        with open(os.path.join(args.out, "trace.json"), "w") as f:
            json.dump(trace, f)
        print(f"{turns} turns, objective {value:.4f}, accuracy {(hits[0] / hits[1]).item():.3f} "
              f"over {world} sites", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
