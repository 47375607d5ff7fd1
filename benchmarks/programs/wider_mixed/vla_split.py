"""Behaviour cloning on a mixture of robot data sets, with a validation slice cut from each of them."""
import argparse
import random

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, random_split


def set_seed(seed, accelerator):
    seed = seed + accelerator.process_index * 12345
    random.seed(seed)
    np.random.seed(seed % 2 ** 32)
    torch.manual_seed(seed)


class Episodes(Dataset):
    def __init__(self, robot, n):
        g = torch.Generator().manual_seed(robot)
        self.obs = torch.randn(n, 10, generator=g)
        self.act = torch.tanh(self.obs[:, :4] - 0.3 * robot + 0.1 * torch.randn(n, 4, generator=g))
        self.first = robot * 1000

    def __len__(self):
        return len(self.obs)

    def __getitem__(self, i):
        noise = torch.randn(10) * 0.02
        return {"observation": self.obs[i] + noise, "action": self.act[i], "frame": self.first + i}


def make_dataset(robot, frames, val_ratio):
    full = Episodes(robot, frames)
    n_val = int(frames * val_ratio)
    train, val = random_split(full, [frames - n_val, n_val])
    return train, val


def make_mixture(spec, val_ratio):
    pairs = [make_dataset(r, n, val_ratio) for r, n in spec]
    return ConcatDataset([t for t, _ in pairs]), ConcatDataset([v for _, v in pairs])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Mish(), nn.Dropout(0.05), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 4))

    def forward(self, batch):
        return (torch.tanh(self.net(batch["observation"])) - batch["action"]).pow(2).mean()


@torch.no_grad()
def validate(accelerator, policy, loader):
    policy.eval()
    vals = [accelerator.gather_for_metrics(policy(b).repeat(len(b["frame"]))) for b in loader]
    policy.train()
    return torch.cat(vals).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1234)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--val-ratio", type=float, default=0.2)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(args.seed, accelerator)
    train, val = make_mixture([(0, 150), (1, 90), (2, 60)], args.val_ratio)
    train_dl = DataLoader(train, batch_size=10, shuffle=True, drop_last=True)
    val_dl = DataLoader(val, batch_size=10)
    policy = Policy()
    opt = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    policy, opt, train_dl, val_dl = accelerator.prepare(policy, opt, train_dl, val_dl)
    for epoch in range(args.epochs):
        for batch in train_dl:
            loss = policy(batch)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        v = validate(accelerator, policy, val_dl)
        accelerator.print(f"epoch {epoch} train {loss.item():.4f} val {v:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
