"""Counts the high digits in a row; every process has its own uneven diet of batches, weighted by what it holds."""
import argparse
import os
import random
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Ledger:
    """Pages of digits; every process owns the pages whose number falls to it."""

    def __init__(self, pages, seed, rank, world):
        rng = random.Random(seed)
        sizes = [rng.randint(5, 45) for _ in range(pages)]
        self.pages = [self.page(seed + n, size) for n, size in enumerate(sizes) if n % world == rank]

    @staticmethod
    def page(seed, size):
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(10, (size, 6), generator=g)
        return x, (x > 5).sum(1)

    def batches(self, most, epoch):
        """Whole pages, as many as fit into `most` rows."""
        order = list(range(len(self.pages)))
        random.Random(epoch).shuffle(order)
        held, rows = [], 0
        for n in order:
            page = self.pages[n]
            if held and rows + len(page[1]) > most:
                yield tuple(torch.cat(part) for part in zip(*held))
                held, rows = [], 0
            held.append(page)
            rows += len(page[1])
        if held:
            yield tuple(torch.cat(part) for part in zip(*held))


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.digit = nn.Embedding(10, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, 7)

    def forward(self, x):
        h = torch.zeros(len(x), self.digit.embedding_dim)
        for t in range(x.shape[1]):
            h = self.cell(self.digit(x[:, t]), h)
        return self.out(h)


class WeightedStep:
    """One optimizer step from whatever rows the processes have between them this turn."""

    def __init__(self, net, opt):
        self.net, self.opt = net, opt
        self.params = list(net.parameters())
        self.sizes = [p.numel() for p in self.params]

    def __call__(self, batch):
        self.opt.zero_grad(set_to_none=True)
        if batch is None:
            packed = torch.zeros(sum(self.sizes) + 2)
        else:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y, reduction="sum")
            loss.backward()
            tail = torch.tensor([float(len(y)), loss.item()])
            packed = torch.cat([p.grad.flatten() for p in self.params] + [tail])
        dist.all_reduce(packed)
        rows, loss = packed[-2].item(), packed[-1].item()
        if rows == 0:
            return None
        for p, g in zip(self.params, (packed[:-2] / rows).split(self.sizes)):
            p.grad = g.view_as(p).clone()
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.opt.step()
        return rows, loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pages", type=int, default=91)
    ap.add_argument("--rows", type=int, default=70)
    ap.add_argument("--width", type=int, default=40)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--seed", type=int, default=19)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "reader"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = Reader(args.width)
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    step = WeightedStep(net, torch.optim.Adam(net.parameters(), lr=args.lr))
    ledger = Ledger(args.pages, seed=400, rank=rank, world=world)

    for epoch in range(args.epochs):
        feed = ledger.batches(args.rows, epoch)
        rows = loss = turns = own = 0
        while True:
            batch = next(feed, None)
            done = step(batch)
            if done is None:
                break
            own += batch is not None
            turns += 1
            rows += done[0]
            loss += done[1]
        print(f"epoch {epoch} process {rank} had {own} of {turns} turns", flush=True)
        if rank == 0:
            print(f"epoch {epoch} loss {loss / rows:.4f} over {int(rows)} rows", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(args.out, "reader.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
