"""Full-batch L-BFGS with a line search; every rank holds a part of the data and all see one objective."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def field(n, seed):
    """Temperature readings over a plane with two warm spots."""
    g = torch.Generator().manual_seed(seed)
    xy = torch.rand(n, 2, generator=g, dtype=torch.float64) * 4 - 2
    warm = lambda cx, cy, s: torch.exp(-((xy[:, 0] - cx) ** 2 + (xy[:, 1] - cy) ** 2) / s)
    t = 3 * warm(-0.8, 0.5, 0.4) - 2 * warm(0.9, -0.6, 0.7) + 0.3 * xy[:, 0]
    return xy, t + 0.02 * torch.randn(n, generator=g, dtype=torch.float64)


class Surface(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, xy):
        return self.net(xy).squeeze(-1)


class SharedObjective:
    """Closure for the optimiser: loss and gradient of the sum over all ranks, equal on each of them."""

    def __init__(self, model, opt, xy, t, decay):
        self.model, self.opt, self.xy, self.t, self.decay = model, opt, xy, t, decay
        self.params = list(model.parameters())
        n = torch.tensor(len(xy))
        dist.all_reduce(n)
        self.n, self.calls = int(n), 0

    def __call__(self):
        self.calls += 1
        self.opt.zero_grad(set_to_none=True)
        local = (self.model(self.xy) - self.t).pow(2).sum() / self.n
        local.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in self.params] + [local.detach().reshape(1)])
        dist.all_reduce(flat)
        penalty = 0.0
        for p, piece in zip(self.params, flat[:-1].split([p.numel() for p in self.params])):
            p.grad.copy_(piece.view_as(p)).add_(p.detach(), alpha=2 * self.decay)
            penalty = penalty + self.decay * p.detach().pow(2).sum()
        return flat[-1] + penalty


@torch.no_grad()
def rmse(model, xy, t):
    s = torch.tensor([(model(xy) - t).pow(2).sum().item(), float(len(t))], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).sqrt().item()


def spread(model):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return (high - low).max().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer", type=int, default=8)
    ap.add_argument("--inner", type=int, default=12)
    ap.add_argument("--records", type=int, default=1500)
    ap.add_argument("--decay", type=float, default=1e-6)
    ap.add_argument("--tolerance", type=float, default=1e-5)
    ap.add_argument("--seed", type=int, default=58)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    xy, t = field(args.records, 1)
    hxy, ht = field(500, 2)
    torch.manual_seed(args.seed)
    model = Surface().double()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=args.inner, history_size=20, line_search_fn="strong_wolfe")
    objective = SharedObjective(model, opt, xy[rank::world], t[rank::world], args.decay)
    log, last = [], float("inf")
    for outer in range(args.outer):
        t0 = time.perf_counter()
        opt.step(objective)
        value = objective().item()
        row = {"outer": outer, "objective": value, "calls": objective.calls, "rmse": rmse(model, hxy[rank::world], ht[rank::world]),
               "spread": spread(model), "seconds": round(time.perf_counter() - t0, 2)}
        log.append(row)
        if rank == 0:
            print(" ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        if last - value < args.tolerance * max(1.0, abs(last)) and outer > 2:
            break
        last = value
    calls = [None] * world
    dist.all_gather_object(calls, objective.calls)
    if rank == 0:
        os.makedirs("runs/fenugreek", exist_ok=True)
        with open("runs/fenugreek/log.json", "w") as f:
            json.dump({"args": vars(args), "rows": log, "closure_calls": calls}, f, indent=1)
        torch.save(model.state_dict(), "runs/fenugreek/surface.pt")
        print("closure calls per rank", calls, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
