"""Token budget training without a wrapper: gradients are summed by hand once per update."""
import argparse
import logging
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from batching import plan

PAD = 0


def sentences(n, seed, vocab=120):
    rnd = random.Random(seed)
    rows = []
    for _ in range(n):
        k = rnd.choice([6, 10, 16, 30, 60])
        start, inc = rnd.randrange(vocab), rnd.randint(1, 4)
        rows.append(torch.tensor([1 + (start + inc * j) % (vocab - 1) for j in range(k + 1)]))
    return rows


class TinyLM(nn.Module):
    def __init__(self, vocab=120, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def summed_loss(model, rows):
    ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum")


def sum_gradients(model):
    params = list(model.parameters())
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in params])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.grad = piece.view_as(p).clone()


@torch.no_grad()
def perplexity(model, rows, rank, world):
    model.eval()
    mine = rows[rank::world]
    t = torch.zeros(2, dtype=torch.float64)
    for s in range(0, len(mine), 32):
        part = mine[s:s + 32]
        t += torch.tensor([summed_loss(model, part).item(), sum(len(r) - 1 for r in part)], dtype=torch.float64)
    dist.all_reduce(t)
    model.train()
    return (t[0] / t[1]).exp().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--rows", type=int, default=1536)
    p.add_argument("--per-update", type=int, default=64)
    p.add_argument("--budget", type=int, default=320)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=15)
    p.add_argument("--save", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm.pt"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[rank {rank}] %(message)s")

    torch.manual_seed(args.seed)
    model = TinyLM()
    for q in model.parameters():
        dist.broadcast(q.data, 0)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, held = sentences(args.rows, 0), sentences(101, 1)
    lengths = [len(r) - 1 for r in train]

    update = 0
    for epoch in range(args.epochs):
        for micro, tokens in plan(lengths, rank, world, args.per_update, args.budget, args.seed, epoch):
            local = 0.0
            for idx in micro:
                loss = summed_loss(model, [train[i] for i in idx]) / tokens
                loss.backward()
                local += loss.item()
            sum_gradients(model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            update += 1
            if update % 20 == 0:
                logging.info("update %d micro-batches %d share of loss %.4f", update, len(micro), local)
        ppl = perplexity(model, held, rank, world)
        if rank == 0:
            logging.info("epoch %d held-out perplexity %.2f", epoch, ppl)
            torch.save(model.state_dict(), args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
