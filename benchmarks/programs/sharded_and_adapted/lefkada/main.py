"""Deep ensemble: one independently initialised member per process, bagged training data.

Members never exchange gradients; predictive means and variances are combined for evaluation.
"""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset


class Series(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(n, 3, generator=g) * 4 - 2
        mean = torch.sin(2 * self.x[:, 0]) * self.x[:, 1] + 0.3 * self.x[:, 2] ** 2
        spread = 0.05 + 0.15 * self.x[:, 0].abs()
        self.y = mean + spread * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Member(nn.Module):
    """Predicts a mean and a log variance."""

    def __init__(self, width=80):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, 2))

    def forward(self, x):
        mean, log_var = self.net(x).unbind(-1)
        return mean, log_var.clamp(-7, 4)


def gaussian_nll(mean, log_var, y):
    return 0.5 * (log_var + (y - mean).pow(2) * torch.exp(-log_var) + math.log(2 * math.pi))


class EnsembleMember:
    def __init__(self, args):
        self.args = args
        self.index, self.members = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed + 97 * self.index)
        self.model = Member()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, args.decay)
        whole = Series(1600, seed=4)
        bag = torch.Generator().manual_seed(args.seed + 1009 * (self.index + 1))
        picked = torch.randint(0, len(whole), (len(whole),), generator=bag).tolist()
        shuffle = torch.Generator().manual_seed(args.seed + 13 * self.index)
        data = Subset(whole, picked)
        self.loader = DataLoader(data, batch_size=args.batch, sampler=RandomSampler(data, generator=shuffle))
        self.test = Series(420, seed=5)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.loader:
            loss = gaussian_nll(*self.model(x), y).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            total += loss.item() * len(y)
        self.schedule.step()
        return total / len(self.loader.dataset)

    @torch.no_grad()
    def combine(self):
        """Every process predicts the complete test set; moments of the mixture are formed jointly."""
        self.model.eval()
        mean, log_var = self.model(self.test.x)
        second = log_var.exp() + mean ** 2
        moments = torch.stack([mean, second])
        dist.all_reduce(moments)
        moments /= self.members
        mix_mean = moments[0]
        mix_var = (moments[1] - mix_mean ** 2).clamp(min=1e-5)
        joint = gaussian_nll(mix_mean, mix_var.log(), self.test.y).mean().item()
        alone = gaussian_nll(mean, log_var, self.test.y).mean()
        solo = [torch.zeros_like(alone) for _ in range(self.members)]
        dist.all_gather(solo, alone)
        return joint, [s.item() for s in solo]

    def save(self):
        os.makedirs(self.args.out, exist_ok=True)
        torch.save({"index": self.index, "model": self.model.state_dict()},
                   os.path.join(self.args.out, f"member{self.index}.pt"))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=40)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--decay", type=float, default=0.85)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--out", default="runs/lefkada")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    member = EnsembleMember(args)
    for epoch in range(args.epochs):
        nll = member.train_epoch()
        joint, solo = member.combine()
        if member.index == 0:
            print(f"epoch {epoch} own train nll {nll:.3f} members {[round(s, 3) for s in solo]} "
                  f"ensemble {joint:.3f}", flush=True)
    member.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
