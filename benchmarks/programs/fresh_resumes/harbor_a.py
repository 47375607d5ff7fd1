import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(128, 384)
        self.b = nn.Linear(384, 3072)
        self.out = nn.Linear(3072, 10)

    def forward(self, x):
        h = torch.relu(self.b(torch.relu(self.a(x))))
        return self.out(h), h


class FeatureLog:
    def __init__(self, keep=10):
        self.keep = keep
        self.rows = []
        self.summary = []

    def add(self, feats):
        self.rows.append(feats.detach().clone())
        if len(self.rows) > self.keep:
            self.compact()

    def compact(self):
        while len(self.rows) > self.keep // 2:
            self.rows.pop(0)

    def flush(self):
        self.summary.append(torch.stack([r.mean() for r in self.rows]).mean().item())
        self.rows.clear()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--report", type=int, default=8)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(16384, 128, generator=g), torch.randint(0, 10, (16384,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=256, sampler=sampler, drop_last=True)
    model = DDP(Encoder())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    log = FeatureLog()
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            logits, feats = model(x)
            F.cross_entropy(logits, y).backward()
            opt.step()
            log.add(feats)
            step += 1
            if rank == 0 and step % args.report == 0:
                log.flush()
        if rank == 0:
            print(epoch, step, log.summary[-1], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
