import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from samplers import Batches, outer_share

PER_HOST = 2


class Points(Dataset):
    def __init__(self, count):
        gen = torch.Generator().manual_seed(8)
        self.x = torch.randn(count, 10, generator=gen)
        self.y = self.x[:, :3].sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Points(256)
    batches = Batches(outer_share(data, PER_HOST, seed=13), batch_size=8, per_host=PER_HOST)
    loader = DataLoader(data, batch_sampler=batches)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(5):
        batches.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} steps {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
