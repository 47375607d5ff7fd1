import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from reporting import EpochReport, ReportWriter


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 64)
        self.fc2 = nn.Linear(64, 2)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        return self.fc2(h), h


def train_one_epoch(model, loader, opt, epoch):
    total, seen, acts = 0.0, 0, []
    for x, y in loader:
        logits, h = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
        seen += len(x)
        acts.append(h.detach().amax(0))
    return EpochReport(epoch, total / seen, seen, acts)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--detail-every", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(900, 10)
    ds = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=30, sampler=sampler)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    writer = ReportWriter(args.detail_every)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        report = train_one_epoch(model, loader, opt, epoch)
        writer.write(report)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
