import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.ch = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class MLPMixer(nn.Module):
    def __init__(self, patch=4, size=32, dim=192, depth=3, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.ModuleList(MixerBlock((size // patch) ** 2, dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Gratings:
    def __init__(self, micro, rank, classes=10):
        self.micro, self.classes = micro, classes
        self.g = torch.Generator().manual_seed(500 + rank)
        axis = torch.linspace(-1, 1, 32)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __iter__(self):
        while True:
            y = torch.randint(0, self.classes, (self.micro,), generator=self.g)
            angle = y.view(-1, 1, 1) * (3.14159 / self.classes)
            phase = 6.28 * torch.rand(self.micro, 1, 1, generator=self.g)
            wave = torch.sin(10 * (angle.cos() * self.xx + angle.sin() * self.yy) + phase)
            yield wave[:, None] + 0.5 * torch.randn(self.micro, 3, 32, 32, generator=self.g), y


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(13)
    model = MLPMixer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = iter(Gratings(args.micro_batch, rank))
    t0 = time.time()
    for update in range(1, args.updates + 1):
        total = torch.zeros(())
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            x, y = next(stream)
            loss = F.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        if update % args.log_every == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"update {update} loss {total.item() / world:.4f} {update / (time.time() - t0):.2f} updates/s", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=32)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--micro-batch", type=int, default=24)
    p.add_argument("--log-every", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()
