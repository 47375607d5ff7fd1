import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from trainer import Trainer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    model = DistributedDataParallel(net)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.05), weight=0.1)
    truth = torch.randn(32, 5)
    gen = torch.Generator().manual_seed(50 + rank)
    torch.manual_seed(60 + rank)
    for step in range(60):
        x = torch.randn(128, 32, generator=gen)
        loss = trainer.step(x, (x @ truth).argmax(dim=1))
        if rank == 0 and step % 20 == 19:
            print(f"step {step} loss {loss:.4f} gap {trainer.mean():.5f}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
