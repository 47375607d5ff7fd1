"""Local training with a delayed outer step: the average of the drift is on its way while the next inner phase runs,
and is put to use a phase later (streaming DiLoCo with an overlap of one phase)."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


def net():
    return nn.Sequential(nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4))


def flat(ps):
    return torch.cat([p.detach().reshape(-1) for p in ps])


@torch.no_grad()
def load(ps, vec):
    for p, piece in zip(ps, vec.split([p.numel() for p in ps])):
        p.copy_(piece.view_as(p))


class Outer:
    """Nesterov on the averaged drift; `pending` holds the transfer that has not been waited for."""

    def __init__(self, params, lr, momentum):
        self.params, self.lr, self.mu = params, lr, momentum
        self.anchor = flat(params)
        self.velocity = torch.zeros_like(self.anchor)
        self.pending = None

    def take(self):
        if self.pending is None:
            return
        work, drift = self.pending
        work.wait()
        self.pending = None
        drift /= dist.get_world_size()
        self.velocity.mul_(self.mu).add_(drift)
        self.anchor = self.anchor - self.lr * (drift + self.mu * self.velocity)

    def launch(self):
        drift = self.anchor - flat(self.params)
        self.take()
        self.pending = (dist.all_reduce(drift, async_op=True), drift)
        load(self.params, self.anchor)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--phases", type=int, default=24)
    ap.add_argument("--inner", type=int, default=30)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--outer-lr", type=float, default=0.4)
    ap.add_argument("--momentum", type=float, default=0.5)
    ap.add_argument("--seed", type=int, default=19)
    ap.add_argument("--out", default="/tmp/diloco.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model, teacher = net(), net()
    params = list(model.parameters())
    inner = torch.optim.AdamW(params, lr=args.lr)
    outer = Outer(params, args.outer_lr, args.momentum)
    gen = torch.Generator().manual_seed(args.seed * 13 + rank)
    for phase in range(args.phases):
        for _ in range(args.inner):
            x = torch.randn(32, 16, generator=gen)
            loss = nn.functional.mse_loss(model(x), teacher(x).detach())
            inner.zero_grad(set_to_none=True)
            loss.backward()
            inner.step()
        outer.launch()
        if phase % 6 == 5:
            seen = loss.detach().clone()
            dist.all_reduce(seen)
            if rank == 0:
                print(f"phase {phase} loss {seen.item() / world:.5f}", flush=True)
    outer.take()
    load(params, outer.anchor)
    if rank == 0:
        torch.save(model.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
