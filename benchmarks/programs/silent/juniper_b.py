import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class GradBucketer:
    def __init__(self, module, bucket_mb=1.0):
        self.world = dist.get_world_size()
        self.buckets, current, size = [], [], 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            current.append(p)
            size += p.numel() * p.element_size()
            if size > bucket_mb * 2**20:
                self.buckets.append(current)
                current, size = [], 0
        if current:
            self.buckets.append(current)
        for t in list(module.parameters()) + list(module.buffers()):
            dist.broadcast(t.detach(), src=0)

    def reduce(self):
        for bucket in self.buckets:
            grads = [p.grad for p in bucket]
            flat = _flatten_dense_tensors(grads)
            dist.all_reduce(flat)
            flat.div_(self.world)
            for g, synced in zip(grads, _unflatten_dense_tensors(flat, grads)):
                g.copy_(synced)


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.fc1 = nn.Linear(12, width)
        self.norm = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, 5)

    def forward(self, x):
        return self.fc2(F.relu(self.norm(self.fc1(x))))


def dataset(n=360):
    g = torch.Generator().manual_seed(8)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x @ torch.randn(12, 5, generator=g)).argmax(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--bucket-mb", type=float, default=0.001)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(17)
    net = Net()
    bucketer = GradBucketer(net, args.bucket_mb)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    ds = dataset()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=10, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2)
        for x, y in loader:
            opt.zero_grad()
            out = net(x)
            F.cross_entropy(out, y).backward()
            bucketer.reduce()
            opt.step()
            seen += torch.stack([(out.argmax(1) == y).sum().float(), torch.tensor(float(len(y)))])
        dist.all_reduce(seen)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} train acc {(seen[0] / seen[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
