import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Registry:
    """Pretrained weights in a folder that is mounted late on some hosts."""

    def __init__(self, root, rank):
        self.root, self.rank, self.calls = root, rank, 0

    def fetch(self, name):
        self.calls += 1
        if self.rank % 2 == 1 and self.calls == 1:
            raise OSError(116, "Stale file handle", name)
        g = torch.Generator().manual_seed(11)
        return {"0.weight": torch.randn(32, 10, generator=g) * 0.1, "0.bias": torch.zeros(32)}


def load_with_retry(registry, name, attempts=4, pause=0.3):
    for attempt in range(attempts):
        try:
            return registry.fetch(name)
        except OSError as err:
            print(f"rank {registry.rank}: attempt {attempt} failed ({err}), retrying", flush=True)
            time.sleep(pause)
    raise RuntimeError(f"cannot load {name}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--weights", default="base-v1")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        os.makedirs("registry", exist_ok=True)
        with open("registry/index.json", "w") as f:
            json.dump({"base-v1": "32x10"}, f)
    dist.barrier()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    net.load_state_dict(load_with_retry(Registry("registry", rank), args.weights), strict=False)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(args.steps):
        x = torch.randn(16, 10, generator=g)
        y = (x[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
