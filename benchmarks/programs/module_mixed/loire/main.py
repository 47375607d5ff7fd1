from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import GROUPS, GroupBatches, Grouped
from vocab import ClassBalance

STEPS, BATCH = 30, 16


class GroupNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tag = nn.Embedding(GROUPS, d)
        self.inp, self.out = nn.Linear(8, d), nn.Linear(d, 4)

    def forward(self, x, group):
        return self.out(torch.relu(self.inp(x) + self.tag(group)))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    stats_group = dist.new_group(timeout=timedelta(seconds=90))
    rank = dist.get_rank()
    torch.manual_seed(14)
    ds = Grouped(rank)
    balance = ClassBalance(ds.labels, GROUPS, stats_group)
    loader = DataLoader(ds, batch_sampler=GroupBatches(ds, BATCH, STEPS, seed=700 + rank))
    model = DDP(GroupNet())
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step, (x, label) in enumerate(loader):
        group = int(label[0, 0])
        logits = model(x, label[:, 0])
        loss = F.cross_entropy(logits, label[:, 1], weight=balance.weights(group))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} group {group} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
