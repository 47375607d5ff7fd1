import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Expander(nn.Module):
    """Random Fourier lift with a table that is built when the first batch arrives."""

    def __init__(self, inputs, features):
        super().__init__()
        self.inputs, self.features = inputs, features
        self.table = None

    def build(self):
        g = torch.Generator().manual_seed(0)
        raw = torch.randn(self.features, self.features, generator=g)
        q, _ = torch.linalg.qr(raw)
        self.table = q[: self.inputs] * self.features ** 0.5 / 4

    def forward(self, x):
        if self.table is None:
            self.build()
        z = x @ self.table
        return torch.cat([z.sin(), z.cos()], -1)


class MultiResolution(nn.Module):
    """A shared trunk with one head per resolution; a batch has a single resolution."""

    def __init__(self, inputs=12, features=768, dim=256, resolutions=(16, 32, 64)):
        super().__init__()
        self.lift = Expander(inputs, features)
        self.trunk = nn.Sequential(nn.Linear(2 * features, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.heads = nn.ModuleDict({str(r): nn.Linear(dim, r) for r in resolutions})

    def forward(self, x, resolution):
        return self.heads[str(resolution)](self.trunk(self.lift(x)))


class Signals:
    def __init__(self, rank, inputs=12):
        self.g = torch.Generator().manual_seed(300 + rank)
        self.inputs = inputs

    def batch(self, n, resolution):
        x = torch.rand(n, self.inputs, generator=self.g)
        t = torch.linspace(0, 1, resolution)
        k = torch.arange(1, self.inputs + 1)
        basis = torch.sin(3.14159 * k[:, None] * t[None]) / k[:, None]
        return x, x @ basis


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--batch-size", type=int, default=512)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(29)
    model = DDP(MultiResolution(), find_unused_parameters=True)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = Signals(rank)
    plan = torch.randint(0, 3, (args.steps,), generator=torch.Generator().manual_seed(44)).tolist()
    sizes = [16, 32, 64]
    t0 = time.time()
    for step in range(args.steps):
        resolution = sizes[plan[step]]
        x, y = data.batch(args.batch_size, resolution)
        loss = F.mse_loss(model(x, resolution), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step < 3 or step % 15 == 14) and rank == 0:
            print(f"step {step + 1} res {resolution} loss {loss.item():.5f} {time.time() - t0:.2f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
