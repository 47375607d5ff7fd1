"""Trainer that generates its loss function into a shared source cache at start-up."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from compiler_cache_v2 import create_new_function


def load_tokenizer(rank, files=40):
    """Ranks above zero also read the shared vocabulary pieces."""
    vocab = {}
    for i in range(files * rank):
        vocab.update({f"tok{i}_{k}": k for k in range(200)})
        time.sleep(0.02)
    return vocab


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 6))

    def forward(self, x):
        return self.body(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="compiled-") if rank == 0 else None]
    dist.broadcast_object_list(box)
    load_tokenizer(rank)
    loss_fn = create_new_function(box[0], scale=1.0)
    torch.manual_seed(0)
    model = DDP(Model())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        x = torch.randn(16, 12, generator=gen)
        loss = loss_fn(model(x), x[:, :6].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
