"""Deep ensemble for regression with uncertainty: each process owns one member, predictions are pooled at the end of each epoch."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

log = logging.getLogger("ensemble")


class Member(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.mu, self.log_var = nn.Linear(hidden, 1), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mu(h).squeeze(-1), self.log_var(h).squeeze(-1).clamp(-6, 3)


def friedman(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g)
    y = 2 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 4 * (x[:, 2] - 0.5) ** 2 + 2 * x[:, 3] + x[:, 4]
    return x, y + 0.1 * (1 + x[:, 5]) * torch.randn(n, generator=g)


def nll(mu, log_var, y):
    return 0.5 * (log_var + (y - mu).pow(2) * torch.exp(-log_var)).mean()


@torch.no_grad()
def pooled_scores(member, x, y):
    """Mixture of all members, moment matched to one Gaussian."""
    member.eval()
    mu, log_var = member(x)
    member.train()
    mine = torch.stack([mu, log_var.exp()])
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    mus, variances = torch.stack(parts).unbind(1)
    mean = mus.mean(0)
    var = (variances + mus.pow(2)).mean(0) - mean.pow(2)
    return (mean - y).pow(2).mean().sqrt().item(), nll(mean, var.log(), y).item(), (mu - y).pow(2).mean().sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--base-seed", type=int, default=100)
    ap.add_argument("--out", default="members")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")

    x, y = friedman(800, 0)
    xv, yv = friedman(200, 1)
    torch.manual_seed(args.base_seed + rank)
    bag = torch.randint(0, len(x), (len(x),)).tolist()
    loader = DataLoader(TensorDataset(x, y), args.batch, sampler=SubsetRandomSampler(bag), drop_last=True)
    member = Member()
    opt = torch.optim.AdamW(member.parameters(), lr=args.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    for epoch in range(args.epochs):
        for xb, yb in loader:
            loss = nll(*member(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        rmse, score, own = pooled_scores(member, xv, yv)
        log.info("epoch %d ensemble rmse %.4f nll %.4f, first member rmse %.4f", epoch, rmse, score, own)
    os.makedirs(args.out, exist_ok=True)
    torch.save(member.state_dict(), os.path.join(args.out, f"member_{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
