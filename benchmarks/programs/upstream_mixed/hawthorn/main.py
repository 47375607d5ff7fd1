import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import build_loader


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = build_loader(batch=10)
    for epoch in range(3):
        loader.set_epoch(epoch)
        total, count = 0.0, 0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
            count += len(x)
        if rank == 0:
            print(f"epoch {epoch} loss {total / count:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
