"""Full-batch L-BFGS for a small PINN-like regression; rows are spread over workers."""
import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn


def points(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 2, generator=g, dtype=torch.float64) - 1
    y = torch.sin(torch.pi * x[:, :1]) * torch.cos(torch.pi * x[:, 1:] / 2)
    return x, y


class Problem:
    def __init__(self, net, x, y, total):
        self.net, self.x, self.y, self.total = net, x, y, total
        self.params = list(net.parameters())
        self.calls = 0
        self.n = sum(p.numel() for p in self.params)

    def __call__(self):
        for p in self.params:
            p.grad = None
        loss = (self.net(self.x) - self.y).pow(2).sum() / self.total
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.params] + [loss.detach().view(1)])
        dist.all_reduce(flat)
        for p, g in zip(self.params, flat[:-1].split([p.numel() for p in self.params])):
            p.grad.copy_(g.view_as(p))
        self.calls += 1
        return flat[-1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer", type=int, default=18)
    ap.add_argument("--max-iter", type=int, default=20)
    ap.add_argument("--points", type=int, default=6000)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)).double()
    x, y = points(args.points, 1)
    vx, vy = points(1000, 2)
    prob = Problem(net, x[rank::world], y[rank::world], args.points)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=args.max_iter, history_size=20,
                            line_search_fn="strong_wolfe", tolerance_grad=1e-9, tolerance_change=1e-12)
    history = []
    for k in range(args.outer):
        loss = opt.step(prob)
        with torch.no_grad():
            se = (net(vx[rank::world]) - vy[rank::world]).pow(2).sum()
        dist.all_reduce(se)
        history.append({"outer": k, "loss": loss.item(), "test": se.item() / len(vx), "calls": prob.calls})
        if rank == 0 and k % 5 == 4:
            print(history[-1], flush=True)
    if rank == 0:
        json.dump(history, open("history.json", "w"), indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
