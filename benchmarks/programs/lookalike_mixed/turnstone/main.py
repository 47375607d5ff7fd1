from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from background import Pulse
from weights import class_weights


def main():
    limit = timedelta(seconds=20)
    dist.init_process_group("gloo", timeout=limit)
    ranks = list(range(dist.get_world_size()))
    quiet, counts = dist.new_group(ranks, timeout=limit), dist.new_group(ranks, timeout=limit)
    torch.manual_seed(13)
    model = DDP(nn.Sequential(nn.Linear(10, 36), nn.ReLU(), nn.Linear(36, 4)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pulse = Pulse(quiet, beats=12)
    pulse.start()
    g = torch.Generator().manual_seed(300 + dist.get_rank())
    for step in range(60):
        x = torch.randn(24, 10, generator=g)
        y = x[:, :4].argmax(1)
        w = class_weights(step // 6, lambda: torch.bincount(y, minlength=4).float(), counts)
        loss = nn.functional.cross_entropy(model(x), y, weight=w)
        opt.zero_grad()
        loss.backward()
        opt.step()
        pulse.done = step
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {float(loss.detach()):.4f}", flush=True)
    pulse.join()
    if dist.get_rank() == 0:
        print(f"slowest seen {pulse.slowest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
