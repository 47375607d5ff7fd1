import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn

from roles import Server, Worker


def blobs(n, seed, classes=12, dim=40):
    g = torch.Generator().manual_seed(6)
    mix = torch.randn(classes, dim, dim, generator=g) / dim ** 0.5
    shift = torch.randn(classes, dim, generator=g) * 0.5
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    x = torch.einsum("nij,nj->ni", mix[y], torch.randn(n, dim, generator=g)) + shift[y]
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=7.0)
    ap.add_argument("--min-pushes", type=int, default=40)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 12))
    xv, yv = blobs(1500, 77)

    @torch.no_grad()
    def evaluate():
        return (model(xv).argmax(1) == yv).float().mean().item()

    if rank == 0:
        done = Server(model, args.lr, 0.8, evaluate).serve(world - 1)
    else:
        x, y = blobs(12_000, 5)
        x, y = x[rank - 1::world - 1], y[rank - 1::world - 1]
        gen = torch.Generator().manual_seed(rank)

        def draw():
            idx = torch.randint(0, len(x), (args.batch,), generator=gen)
            return x[idx], y[idx]

        # machines of the pool are of different age
        done = Worker(model, draw, pause=0.004 * 4 ** (rank - 1)).work(args.seconds, args.min_pushes)

    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    totals = torch.tensor([done if rank == 0 else 0, 0 if rank == 0 else done])
    dist.all_reduce(totals)
    assert totals[0] == totals[1]
    logging.info("applied %d of %d gradients, accuracy %.4f", totals[0], totals[1], evaluate())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
