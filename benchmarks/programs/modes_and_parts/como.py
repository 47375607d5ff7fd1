"""Fine-grained picture classifier; batch statistics are frozen after the warm phase."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class Net(nn.Module):
    def __init__(self, classes=5, c=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
                                  nn.MaxPool2d(2))
        self.blocks = nn.Sequential(ResBlock(c), ResBlock(c))
        self.head = nn.Linear(c, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    wave = torch.arange(12.0).view(1, 1, 12) * (y + 1).view(-1, 1, 1) * 0.5
    x = torch.randn(n, 3, 12, 12, generator=g)
    x[:, 0] += torch.sin(wave)
    x[:, 1] += torch.cos(wave).transpose(1, 2)
    return TensorDataset(x, y)


def set_mode(model, epoch, freeze_from):
    model.train()
    if epoch >= freeze_from:
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()


@torch.no_grad()
def accuracy(net, data):
    was = {m: m.training for m in net.modules()}
    net.eval()
    x, y = data.tensors
    acc = (net(x).argmax(1) == y).float().mean().item()
    for m, flag in was.items():
        m.training = flag
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--freeze-bn-from", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.01)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(23)
    model = DistributedDataParallel(Net())
    data, held = pictures(768, 1), pictures(200, 2)
    sampler = DistributedSampler(data, seed=23, drop_last=True)
    loader = DataLoader(data, 32, sampler=sampler, drop_last=True)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        set_mode(model, epoch, args.freeze_bn_from)
        loss_sum = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            loss_sum += torch.tensor([loss.item() * len(y), len(y)])
        sched.step()
        dist.all_reduce(loss_sum)
        if rank == 0:
            print(f"epoch {epoch} loss {loss_sum[0] / loss_sum[1]:.4f} acc {accuracy(model.module, held):.3f}", flush=True)
    if rank == 0:
        os.makedirs("out_como", exist_ok=True)
        torch.save(model.module.state_dict(), "out_como/net.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
