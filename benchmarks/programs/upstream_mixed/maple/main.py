import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from momentum import MomentumContrast


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(6)
    encoder = nn.Sequential(nn.Linear(40, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 24))
    model = DistributedDataParallel(MomentumContrast(encoder, 24, 256), broadcast_buffers=False)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05, momentum=0.9)
    torch.manual_seed(600 + rank)
    for step in range(40):
        x = torch.randn(16, 40)
        a, b = x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)
        loss = model(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
