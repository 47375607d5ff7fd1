import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from engine import train_one_epoch, validate_on_main


def conv_bn(i, o, stride=1):
    return nn.Sequential(nn.Conv1d(i, o, 5, stride, 2, bias=False), nn.BatchNorm1d(o), nn.ReLU())


class KeywordNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.net = nn.Sequential(conv_bn(20, 48), conv_bn(48, 64, 2), conv_bn(64, 64), conv_bn(64, 96, 2))
        self.fc = nn.Linear(96, classes)

    def forward(self, x):
        return self.fc(self.net(x).mean(2))


def speech(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(8, 20, 16, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 8, (n,), generator=g)
    x = nn.functional.interpolate(proto[y], 64) + 2.0 * torch.randn(n, 20, 64, generator=g)
    return TensorDataset(x, y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--eval-every", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    train_set, val_set = speech(3072, 1), speech(1024, 2)
    sampler = DistributedSampler(train_set, seed=6)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, 128)
    torch.manual_seed(0)
    model = DDP(KeywordNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, opt)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
        if (epoch + 1) % args.eval_every == 0:
            score = validate_on_main(model, val_loader)
            if score is not None:
                print(f"epoch {epoch} accuracy {score:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
