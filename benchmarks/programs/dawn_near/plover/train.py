import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from stream import Dispatcher


class Net(nn.Module):
    def __init__(self, width=16, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.GroupNorm(4, 4 * width), nn.ReLU(),
        )
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=70)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    cfg = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    start = time.time()
    for step, (images, labels) in enumerate(Dispatcher(cfg.batch, seed=17), 1):
        loss = F.cross_entropy(model(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            rate = step * cfg.batch * dist.get_world_size() / (time.time() - start)
            print(f"step {step} loss {loss.item():.4f} {rate:.0f} images/s", flush=True)
        if step == cfg.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
