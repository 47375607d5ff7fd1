"""Data-parallel training over two hosts of two processes each."""
import datetime

import torch
import torch.distributed as dist
from torch import nn

from groups import Hierarchy, mean_gradients


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    hierarchy = Hierarchy(per_host=2)
    torch.manual_seed(13)
    model = nn.Sequential(nn.Linear(16, 48), nn.SiLU(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(140 + rank)
    for step in range(30):
        x = torch.randn(24, 16, generator=gen)
        y = x[:, :4].argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        mean_gradients(model.parameters(), hierarchy)
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
