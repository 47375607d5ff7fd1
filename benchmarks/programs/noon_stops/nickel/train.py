import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpoint import CheckpointWriter


class Denoiser(nn.Module):
    def __init__(self, dim=64, width=256, depth=3):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.inp = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
             for _ in range(depth)]
        )
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for blk in self.blocks:
            h = h + blk(h)
        return self.out(h)


def sample_batch(generator, size, dim):
    centre = torch.randint(0, 8, (size, 1), generator=generator).float()
    base = torch.sin(centre + torch.arange(dim).float() / 5)
    return base + 0.05 * torch.randn(size, dim, generator=generator)


def diffusion_loss(model, x0, generator):
    t = torch.rand(x0.size(0), 1, generator=generator)
    noise = torch.randn(x0.shape, generator=generator)
    alpha = torch.cos(t * torch.pi / 2)
    sigma = torch.sin(t * torch.pi / 2)
    return nn.functional.mse_loss(model(alpha * x0 + sigma * noise, t), noise)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=56)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--save-every", type=int, default=14)
    p.add_argument("--optimizer-every", type=int, default=28)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Denoiser()
    for blk in model.blocks:
        fully_shard(blk, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    folder = os.path.join(tempfile.gettempdir(), f"denoiser-{os.environ['MASTER_PORT']}")
    writer = CheckpointWriter(folder)
    generator = torch.Generator().manual_seed(100 + rank)

    for step in range(1, args.steps + 1):
        loss = diffusion_loss(model, sample_batch(generator, args.batch_size, 64), generator)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % args.save_every == 0:
            writer.save(step, model, opt, with_optimizer=step % args.optimizer_every == 0)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
