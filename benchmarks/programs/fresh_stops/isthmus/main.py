"""GRU language model over a cached window index."""
import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from shards import Windows, scratch


class GRULM(nn.Module):
    def __init__(self, vocab=40, width=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def be_gentle_to_the_disk():
    """Processes of one host open the corpus one after the other."""
    time.sleep(0.7 * int(os.environ.get("LOCAL_RANK", 0)))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--window", type=int, default=24)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--max-batches", type=int, default=30)
    p.add_argument("--seed", type=int, default=2)
    p.add_argument("--ckpt", default="/tmp/grulm.pt")
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    be_gentle_to_the_disk()
    data = Windows(args.seed, args.window)
    if rank == 0:
        print(f"{len(data)} windows", flush=True)
    torch.manual_seed(args.seed)
    model = DDP(GRULM())
    optim = torch.optim.AdamW(model.parameters(), lr=4e-3)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = torch.zeros(2)
        for n, (x, y) in enumerate(loader):
            if n == args.max_batches:
                break
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            losses += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(losses)
        if rank == 0:
            print(f"epoch {epoch} perplexity {(losses[0] / losses[1]).exp().item():.2f}", flush=True)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, args.ckpt)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(scratch(), ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
