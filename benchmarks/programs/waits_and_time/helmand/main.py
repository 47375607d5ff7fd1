import argparse
import logging
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feed import Feed
from records import write_shards

log = logging.getLogger("helmand")


class Recommender(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, users, items):
        u, v = self.user(users), self.item(items)
        return (u * v).sum(-1) + self.mix(torch.cat([u, v], -1)).squeeze(-1)


def arguments():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=300)
    ap.add_argument("--items", type=int, default=400)
    ap.add_argument("--dim", type=int, default=16)
    ap.add_argument("--events", type=int, default=6000)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--steps", type=int, default=260)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--log-every", type=int, default=40)
    ap.add_argument("--lr", type=float, default=5e-3)
    return ap.parse_args()


def train(args, rank, world, folder):
    torch.manual_seed(29)
    model = DistributedDataParallel(Recommender(args.users, args.items, args.dim))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    feed = Feed(folder, rank, world, args.batch, args.depth).start()
    ema, began = None, time.perf_counter()
    for step in range(1, args.steps + 1):
        users, items, ratings = feed.next()
        loss = nn.functional.mse_loss(model(users, items), ratings)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if rank == 0 and step % args.log_every == 0:
            log.info("step %d loss %.3f, %.0f steps/s", step, ema, step / (time.perf_counter() - began))
    feed.stop()
    return ema


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(name)s[{rank}] %(message)s")
    box = [None]
    if rank == 0:
        box[0] = tempfile.mkdtemp(prefix="helmand_")
        write_shards(box[0], args.events, args.users, args.items, shards=6)
    dist.broadcast_object_list(box, src=0)
    ema = train(args, rank, world, box[0])
    t = torch.tensor([ema])
    dist.all_reduce(t)
    if rank == 0:
        log.info("mean of the running losses %.4f", t.item() / world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
