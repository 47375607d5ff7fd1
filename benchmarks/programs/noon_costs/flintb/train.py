import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpoint import CheckpointManager


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Mixer(nn.Module):
    def __init__(self, inputs=64, dim=448, hidden=1280, depth=4, outputs=16):
        super().__init__()
        self.stem = nn.Linear(inputs, dim)
        self.blocks = nn.ModuleList(Block(dim, hidden) for _ in range(depth))
        self.head = nn.Linear(dim, outputs)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Stream:
    def __init__(self, batch, rank, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.teacher = torch.randn(64, 16, generator=g) / 8
        self.g = torch.Generator().manual_seed(seed + 1000 + rank)
        self.batch = batch

    def next(self):
        x = torch.randn(self.batch, 64, generator=self.g)
        return x, torch.tanh(x @ self.teacher)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=56)
    ap.add_argument("--batch", type=int, default=320)
    ap.add_argument("--save-every", type=int, default=7)
    ap.add_argument("--ckpt-dir", default="/tmp/flint_ckpt")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Mixer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = Stream(args.batch, rank)
    manager = CheckpointManager(args.ckpt_dir)

    t0 = time.time()
    for step in range(1, args.steps + 1):
        x, y = data.next()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % args.save_every == 0:
            manager.save(model, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.5f} {step / (time.time() - t0):.2f} it/s", flush=True)
    manager.export()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
