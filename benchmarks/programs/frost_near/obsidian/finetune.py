import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Backbone(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.stage1 = nn.Sequential(nn.GroupNorm(3, channels), nn.ReLU(),
                                    nn.Conv2d(channels, channels, 3, stride=2, padding=1))
        self.stage2 = nn.Sequential(nn.GroupNorm(3, channels), nn.ReLU(),
                                    nn.Conv2d(channels, channels * 2, 3, stride=2, padding=1))

    def forward(self, x):
        return self.stage2(self.stage1(self.stem(x))).mean(dim=(2, 3))


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = Backbone()
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        return self.fc(F.relu(self.backbone(x)))


def make_leaves(n, classes, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(classes, 1, 16, 16, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, classes, (n,), generator=g)
    x = protos[y] + 0.7 * torch.randn(n, 1, 16, 16, generator=g)
    return TensorDataset(x, y)


class Finetuner:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        net = Classifier(args.classes)
        for p in net.backbone.parameters():
            p.requires_grad_(False)
        self.model = DistributedDataParallel(net)
        self.opt = torch.optim.SGD(net.fc.parameters(), lr=args.lr, momentum=0.9)
        self.data = make_leaves(384, args.classes, seed=5)
        self.sampler = DistributedSampler(self.data, shuffle=True, seed=args.seed)
        self.loader = DataLoader(self.data, batch_size=16, sampler=self.sampler, drop_last=True)

    def unfreeze(self):
        net = self.model.module
        for p in net.backbone.parameters():
            p.requires_grad_(True)
        self.model = DistributedDataParallel(net)
        self.opt.add_param_group({"params": list(net.backbone.parameters()),
                                  "lr": self.args.lr * self.args.backbone_scale})

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        stats = torch.zeros(3)
        for x, y in self.loader:
            logits = self.model(x)
            loss = F.cross_entropy(logits, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            stats += torch.stack([loss.detach() * len(y),
                                  (logits.argmax(1) == y).sum().float(),
                                  torch.tensor(float(len(y)))])
        dist.all_reduce(stats)
        if self.rank == 0:
            print(f"[{epoch}] loss {stats[0] / stats[2]:.4f} acc {stats[1] / stats[2]:.3f}")

    def fit(self):
        for epoch in range(self.args.epochs):
            if epoch == self.args.unfreeze_at:
                self.unfreeze()
            self.run_epoch(epoch)


def main():
    ap = argparse.ArgumentParser("leaf finetuning")
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--unfreeze-at", type=int, default=2)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--backbone-scale", type=float, default=0.2)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    Finetuner(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
