"""Discrete autoencoder for short sensor windows."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from quantizer import MovingCodebook, perplexity

log = logging.getLogger("windows")


class SensorWindows(Dataset):
    """Windows of four kinds of machine noise."""

    def __init__(self, count, width, seed):
        g = torch.Generator().manual_seed(seed)
        kind = torch.randint(4, (count, 1), generator=g)
        phase = torch.rand(count, 1, generator=g) * 6.28
        t = torch.arange(width).float()
        tone = torch.sin(t * (0.15 + 0.2 * kind) + phase)
        self.x = (tone + 0.2 * torch.randn(count, width, generator=g)) * (0.5 + 0.5 * kind)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class WindowCoder(nn.Module):
    def __init__(self, width, slots, dim, codes):
        super().__init__()
        self.slots, self.dim = slots, dim
        self.encoder = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, slots * dim))
        self.book = MovingCodebook(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(slots * dim, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, x):
        z = self.encoder(x).view(len(x), self.slots, self.dim)
        q, commit, index = self.book(z)
        return self.decoder(q.flatten(1)), commit, index


def evaluate(net, loader, codes):
    net.eval()
    seen = torch.zeros(2, dtype=torch.double)
    picks = []
    with torch.no_grad():
        for x in loader:
            y, _, index = net(x)
            seen += torch.tensor([F.mse_loss(y, x, reduction="sum").item(), x.numel()], dtype=torch.double)
            picks.append(index)
    dist.all_reduce(seen)
    net.train()
    return (seen[0] / seen[1]).item(), perplexity(torch.cat(picks), codes)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--slots", type=int, default=4)
    p.add_argument("--dim", type=int, default=8)
    p.add_argument("--codes", type=int, default=32)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--beta", type=float, default=0.25)
    p.add_argument("--seed", type=int, default=17)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "window_coder"))
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s %(message)s")
    torch.manual_seed(args.seed)

    train, valid = SensorWindows(2048, args.width, 1), SensorWindows(512, args.width, 2)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    held = DataLoader(valid, args.batch, sampler=DistributedSampler(valid, shuffle=False))

    coder = WindowCoder(args.width, args.slots, args.dim, args.codes)
    ddp = DistributedDataParallel(coder, broadcast_buffers=False)
    opt = torch.optim.Adam(coder.parameters(), lr=2e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(2)
        for x in loader:
            y, commit, _ = ddp(x)
            rec = F.mse_loss(y, x)
            loss = rec + args.beta * commit
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            running += torch.stack([rec.detach(), commit.detach()])
        running /= len(loader)
        dist.all_reduce(running)
        running /= dist.get_world_size()
        mse, ppl = evaluate(coder, held, args.codes)
        log.info("epoch %d rec %.4f commit %.4f | valid mse %.4f perplexity %.1f",
                 epoch, running[0], running[1], mse, ppl)
        if rank == 0:
            os.makedirs(args.out, exist_ok=True)
            torch.save(coder.state_dict(), os.path.join(args.out, f"coder_{epoch}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
