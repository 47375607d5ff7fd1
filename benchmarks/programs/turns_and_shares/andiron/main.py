"""Next-token model with token-budget batches under DDP."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from batching import Sentences, TokenBudget


class Decoder(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.project = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.project(h) @ self.embed.weight.t() + self.bias


class Meter:
    def __init__(self):
        self.nll = self.tokens = 0.0

    def add(self, nll, tokens):
        self.nll += nll
        self.tokens += tokens

    @property
    def mean(self):
        return self.nll / max(self.tokens, 1.0)


def train_epoch(ddp, opt, packer, epoch, args):
    meter = Meter()
    plan = packer.plan(epoch)
    turns = torch.tensor(len(plan))
    dist.all_reduce(turns, op=dist.ReduceOp.MIN)
    for picks in plan[:turns.item()]:
        x, y = packer.collate(picks)
        logits = ddp(x)
        nll = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=0, reduction="sum")
        opt.zero_grad(set_to_none=True)
        (nll / args.budget).backward()
        opt.step()
        meter.add(nll.item(), (y != 0).sum().item())
    return meter


def checkpoint(net, opt, epoch, args):
    if dist.get_rank() == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"epoch": epoch, "net": net.state_dict(), "opt": opt.state_dict()},
                   os.path.join(args.out, "decoder.pt"))
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sentences", type=int, default=900)
    ap.add_argument("--vocab", type=int, default=40)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--budget", type=int, default=320)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "decoder_b"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = Decoder(args.vocab, args.width)
    ddp = DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    packer = TokenBudget(Sentences(args.sentences, args.vocab, seed=60), args.budget, rank, world, args.seed)

    for epoch in range(args.epochs):
        began = time.time()
        meter = train_epoch(ddp, opt, packer, epoch, args)
        checkpoint(net, opt, epoch, args)
        totals = torch.tensor([meter.nll, meter.tokens], dtype=torch.double)
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch} nll {(totals[0] / totals[1]).item():.4f} over {int(totals[1])} tokens "
                  f"in {time.time() - began:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
