import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from snapshot import AsyncSnapshot


class AutoEncoder(nn.Module):
    def __init__(self, ch=16, latent=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(2 * ch * 49, latent))
        self.dec = nn.Sequential(nn.Linear(latent, 2 * ch * 49), nn.ReLU(), nn.Unflatten(1, (2 * ch, 7, 7)),
                                 nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 1, 4, 2, 1))

    def forward(self, x):
        return self.dec(self.enc(x))


def strokes(n, generator):
    grid = torch.arange(28).float()
    a, b = torch.rand(n, 1, 1, generator=generator) * 2 - 1, torch.rand(n, 1, 1, generator=generator) * 20 + 4
    line = grid[None, :, None] - (a * (grid[None, None, :] - 14) + b)
    return torch.exp(-line ** 2 / 4).unsqueeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--save-every", type=int, default=20)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(AutoEncoder())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(30 + rank)
    folder = os.path.join(tempfile.gettempdir(), f"ae-{os.environ['MASTER_PORT']}")
    snapshot = AsyncSnapshot(folder)
    for step in range(1, args.steps + 1):
        x = strokes(args.batch_size, generator)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        opt.step()
        if step % args.save_every == 0:
            snapshot.save(step, model.module, opt)
            if rank == 0:
                print(f"step {step} loss {loss.item():.5f}", flush=True)
    snapshot.wait()
    dist.barrier()
    if rank == 0:
        print("snapshots", sorted(snapshot.index), flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
