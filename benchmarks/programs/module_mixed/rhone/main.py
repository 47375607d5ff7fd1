from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from blocks import BlockSource

STEPS, VOLUMES = 36, 12


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)


def build():
    torch.manual_seed(33)
    model = DDP(Surrogate())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return model, opt, torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=STEPS)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=110))
    control = dist.new_group(timeout=timedelta(seconds=110))
    model, opt, sched = build()
    source = BlockSource(VOLUMES, control)
    for step, (x, y) in enumerate(source.batches(STEPS)):
        loss = nn.functional.huber_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 6 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
