import argparse
import logging
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from sharded import ShardedAdam


class Encoder(nn.Module):
    def __init__(self, vocab=101, dim=80, depth=2, classes=7):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(40, dim) * 0.02)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, 160, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.emb(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.out(h.mean(1))


def make_batch(step, global_batch, rank, world):
    g = torch.Generator().manual_seed(10_000 + step)
    x = torch.randint(0, 101, (global_batch, 40), generator=g)
    y = (x % 7 == 3).sum(1).clamp(max=6)
    return x.chunk(world)[rank], y.chunk(world)[rank]


def build(lr):
    torch.manual_seed(6)
    model = Encoder()
    return model, ShardedAdam(model.parameters(), lr)


def train(model, opt, first, last, global_batch, on_step=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(first, last):
        x, y = make_batch(step, global_batch, rank, world)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = opt.step()
        if step % 15 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            logging.info("step %d loss %.6f grad norm %.5f", step, mean.item() / world, norm)
        if on_step:
            on_step(step + 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=75)
    ap.add_argument("--save-at", type=int, default=45)
    ap.add_argument("--global-batch", type=int, default=48)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    root = [args.out or tempfile.mkdtemp(prefix="enc-")] if rank == 0 else [None]
    dist.broadcast_object_list(root, src=0)
    os.makedirs(root[0], exist_ok=True)
    path = os.path.join(root[0], f"shard-{rank}-of-{world}.pt")

    def save(done):
        if done == args.save_at:
            torch.save({"step": done, "opt": opt.state_dict()}, path)

    model, opt = build(args.lr)
    train(model, opt, 0, args.steps, args.global_batch, save)
    reference = torch.cat([b.data for b in opt.buckets])

    logging.info("rebuilding from the shards of step %d", args.save_at)
    model, opt = build(args.lr)
    state = torch.load(path)
    opt.load_state_dict(state["opt"])
    train(model, opt, state["step"], args.steps, args.global_batch)
    again = torch.cat([b.data for b in opt.buckets])
    logging.info("continued run differs by %.3g, weight norm %.6f", (again - reference).abs().max(), again.norm())
    dist.barrier()
    if rank == 0 and args.out is None:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
