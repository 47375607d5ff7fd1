import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import save
from storage import Bucket


class Tagger(nn.Module):
    def __init__(self, vocab=64, dim=24, tags=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def batches(rank, steps, size, vocab=64, tags=8):
    g = torch.Generator().manual_seed(77 + rank)
    for _ in range(steps):
        x = torch.randint(0, vocab, (size, 10), generator=g)
        yield x, (x + x.roll(1, dims=1)) % tags


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--save-every", type=int, default=5)
    ap.add_argument("--size", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")

    box = [tempfile.mkdtemp(prefix="bucket_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    bucket = Bucket(box[0], salt=178 + rank)

    torch.manual_seed(4)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(batches(rank, args.steps, args.size), 1):
        loss = loss_fn(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.save_every == 0:
            size = save(bucket, model.module, step)
            if rank == 0:
                logging.info("step %d loss %.4f saved %d bytes", step, loss.item(), size)
    dist.barrier()
    if rank == 0:
        logging.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
