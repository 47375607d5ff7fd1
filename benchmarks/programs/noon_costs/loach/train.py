import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def sphere_points(n):
    i = torch.arange(n) + 0.5
    phi = torch.acos(1 - 2 * i / n)
    theta = math.pi * (1 + 5 ** 0.5) * i
    return torch.stack([theta.cos() * phi.sin(), theta.sin() * phi.sin(), phi.cos()], -1)


class GridMapper(nn.Module):
    """Interpolates node features between two point sets with geometric weights."""

    def __init__(self, src, dst, scale):
        super().__init__()
        d = torch.cdist(dst, src)
        self.register_buffer("weight", torch.softmax(-(d / scale) ** 2, dim=1))

    def forward(self, x):
        return torch.matmul(self.weight, x)


class EncodeProcessDecode(nn.Module):
    def __init__(self, grid=3072, mesh=768, channels=6, width=32, layers=3):
        super().__init__()
        grid_xyz, mesh_xyz = sphere_points(grid), sphere_points(mesh)
        self.to_mesh = GridMapper(grid_xyz, mesh_xyz, 0.08)
        self.to_grid = GridMapper(mesh_xyz, grid_xyz, 0.08)
        self.mesh_mix = GridMapper(mesh_xyz, mesh_xyz, 0.2)
        self.embed = nn.Linear(channels, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(layers))
        self.readout = nn.Linear(width, channels)

    def forward(self, x):
        h = self.to_mesh(self.embed(x))
        for block in self.blocks:
            h = h + block(torch.cat([h, self.mesh_mix(h)], -1))
        return x + self.readout(self.to_grid(h))


class Rotation:
    """Smooth fields advected by a solid rotation: pairs of consecutive states."""

    def __init__(self, grid, channels, seed):
        self.xyz = sphere_points(grid)
        self.channels = channels
        self.g = torch.Generator().manual_seed(seed)
        c, s = math.cos(0.2), math.sin(0.2)
        self.rot = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    def batch(self, n):
        k = torch.randn(n, 3, self.channels, generator=self.g) * 2
        p = torch.rand(n, 1, self.channels, generator=self.g) * 6.28
        field = lambda xyz: torch.sin(xyz @ k + p)
        return field(self.xyz), field(self.xyz @ self.rot)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch-size", type=int, default=1)
    ap.add_argument("--grid", type=int, default=3072)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    model = DDP(EncodeProcessDecode(grid=args.grid))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Rotation(args.grid, 6, seed=100 + rank)
    start = time.time()
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch_size)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"{step:4d} rmse {loss.item() ** 0.5:.4f} {step / (time.time() - start):.2f} it/s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
