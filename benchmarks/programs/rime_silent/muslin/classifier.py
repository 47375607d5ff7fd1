"""Two stage transfer learning: warm up the new head, then train everything."""
import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def conv_bn(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.GroupNorm(4, o), nn.SiLU())


class Net(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 16, 1), conv_bn(16, 32, 2), conv_bn(32, 48, 2),
                                      nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(48, classes))

    def forward(self, x):
        return self.head(self.backbone(x))

    def set_backbone_trainable(self, flag):
        for p in self.backbone.parameters():
            p.requires_grad_(flag)


def toy_images(n, seed, classes=6):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    proto = torch.randn(classes, 3, 24, 24, generator=torch.Generator().manual_seed(5))
    x = 0.5 * proto[y] + torch.randn(n, 3, 24, 24, generator=g)
    return TensorDataset(x, y)


class Finetuner:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        net = Net()
        net.set_backbone_trainable(False)
        self.model = DDP(net)
        self.optimizer = torch.optim.AdamW(net.head.parameters(), lr=args.lr)
        data = toy_images(args.samples, 0)
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        val = toy_images(384, 1)
        self.val_loader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))

    def start_stage_two(self):
        net = self.model.module
        net.set_backbone_trainable(True)
        self.model = DDP(net)
        self.optimizer.add_param_group({"params": net.backbone.parameters(), "lr": self.args.lr * 0.5})
        if self.rank == 0:
            print("backbone is trainable now", flush=True)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        meter = torch.zeros(2)
        for x, y in self.loader:
            loss = F.cross_entropy(self.model(x), y, label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            meter += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(meter)
        return (meter[0] / meter[1]).item()

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        hit = torch.zeros(2)
        for x, y in self.val_loader:
            hit += torch.tensor([(self.model(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hit)
        return (hit[0] / hit[1]).item()

    def run(self):
        for epoch in range(self.args.epochs):
            if epoch == self.args.unfreeze_epoch:
                self.start_stage_two()
            loss = self.train_epoch(epoch)
            acc = self.accuracy()
            if self.rank == 0:
                print(f"[{epoch}] loss {loss:.4f} val acc {acc:.3f}", flush=True)
                torch.save(self.model.module.state_dict(), self.args.out)
            dist.barrier()


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--unfreeze-epoch", type=int, default=2)
    ap.add_argument("--samples", type=int, default=1280)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default=os.path.join(here, "weights.pt"))
    with process_group():
        Finetuner(ap.parse_args()).run()
