import argparse

import torch
import torch.distributed as dist
from torch import nn

from layout import Channel, Layout


class Piece(nn.Module):
    def __init__(self, layout, features, width, depth, classes):
        super().__init__()
        mods = [nn.Linear(features, width)] if layout.first else []
        for _ in range(depth):
            mods += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
        if layout.last:
            mods.append(nn.Linear(width, classes))
        self.net = nn.Sequential(*mods)

    def forward(self, x):
        return self.net(x)


class Blobs:
    def __init__(self, features, classes, replica):
        self.centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(1))
        self.gen = torch.Generator().manual_seed(100 + replica)

    def batch(self, n):
        y = torch.randint(0, len(self.centres), (n,), generator=self.gen)
        x = self.centres[y] + 1.5 * torch.randn(n, self.centres.size(1), generator=self.gen)
        return x, y


@torch.no_grad()
def sync_replicas(module, layout):
    grads = [p.grad for p in module.parameters()]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, group=layout.data_group)
    flat /= layout.replicas
    at = 0
    for g in grads:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()


def train_step(module, opt, channel, data, args):
    layout = channel.layout
    opt.zero_grad(set_to_none=True)
    total = 0.0
    for _ in range(args.micro_batches):
        x, y = data.batch(args.micro_size)
        inp = channel.recv_activation()
        out = module(x if layout.first else inp)
        if layout.last:
            loss = nn.functional.cross_entropy(out, y) / args.micro_batches
            loss.backward()
            total += loss.item()
        else:
            channel.send_activation(out)
            out.backward(channel.recv_gradient())
        channel.send_gradient(None if inp is None else inp.grad)
    sync_replicas(module, layout)
    opt.step()
    return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--stages", type=int, default=2)
    p.add_argument("--micro-batches", type=int, default=3)
    p.add_argument("--micro-size", type=int, default=128)
    p.add_argument("--width", type=int, default=256)
    args = p.parse_args()

    dist.init_process_group("gloo")
    layout = Layout(args.stages)
    torch.manual_seed(layout.stage)
    module = Piece(layout, 64, args.width, 3, 12)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    channel = Channel(layout, (args.micro_size, args.width))
    data = Blobs(64, 12, layout.replica)
    for step in range(args.steps):
        loss = train_step(module, opt, channel, data, args)
        if layout.last and layout.replica == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
