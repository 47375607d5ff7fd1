"""Skip-gram vectors from a crawl.   torchrun --nproc-per-node 3 main.py --langs fi hu"""
import argparse
import logging
import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from files import WORDS, make_folder, read

logger = logging.getLogger("vectors")


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.inside, self.outside = nn.Embedding(vocab, dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, centre):
        return self.outside(self.inside(centre))


def pairs(lines, span=2):
    idx = {w: i for i, w in enumerate(WORDS)}
    out = []
    for line in lines:
        ids = [idx[w] for w in line.split()]
        for i, c in enumerate(ids):
            out += [(c, ids[j]) for j in range(max(0, i - span), min(len(ids), i + span + 1)) if j != i]
    return torch.tensor(out).view(-1, 2)


def shared_folder(args):
    box = [make_folder(args.seed) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    return box[0]


def train(args, root):
    rank, world = dist.get_rank(), dist.get_world_size()
    data = pairs(read(root, rank, world, args.langs))
    if not len(data):
        logger.debug("nothing to do")
        return
    torch.manual_seed(args.seed)
    model = SkipGram(len(WORDS), args.dim)
    optim = torch.optim.SGD(model.parameters(), lr=args.lr)
    draw = torch.Generator().manual_seed(args.seed + 1000 + rank)
    for step in range(args.steps):
        take = data[torch.randint(0, len(data), (args.batch,), generator=draw)]
        loss = cross_entropy(model(take[:, 0]), take[:, 1])
        optim.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optim.step()
        if step % 50 == 0:
            seen = loss.detach().clone()
            dist.all_reduce(seen)
            if rank == 0:
                logger.info("step %d loss %.4f", step, seen / world)
    if rank == 0:
        torch.save(model.state_dict(), args.out)
    dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--langs", nargs="+", default=["fi", "hu"])
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", default="/tmp/skipgram.pt")
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(message)s")
    dist.init_process_group("gloo")
    root = shared_folder(args)
    train(args, root)
    if dist.get_rank() == 0:
        shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
