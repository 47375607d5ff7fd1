#!/usr/bin/env python
"""Tiny causal transformer on packed blocks, scored on whole documents."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from scoring import deal, perplexity

log = logging.getLogger("heron")
VOCAB, BLOCK, MAXLEN = 32, 32, 80


def document(length, gen):
    mul = int(torch.randint(0, 4, (1,), generator=gen)) * 2 + 1
    add = int(torch.randint(0, 8, (1,), generator=gen))
    ids = [int(torch.randint(0, VOCAB, (1,), generator=gen))]
    while len(ids) < length:
        ids.append((ids[-1] * mul + add) % VOCAB)
    return torch.tensor(ids)


class Causal(nn.Module):
    def __init__(self, dim=32, heads=4, layers=1):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(MAXLEN, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 64, dropout=0.05, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x, y = ids[:, :-1], ids[:, 1:]
        n = x.size(1)
        mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        h = self.body(self.tok(x) + self.pos(torch.arange(n)), mask=mask)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten(), reduction="none")


def get_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "heron_best.pt"))
    return p.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")

    gen = torch.Generator().manual_seed(args.seed)
    blocks = torch.stack([document(BLOCK + 1, gen) for _ in range(768)])
    docs = [document(int(torch.randint(4, MAXLEN, (1,), generator=gen)), gen) for _ in range(64)]
    mine = deal(docs, rank, world)

    train = TensorDataset(blocks)
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    ddp = DistributedDataParallel(Causal())
    torch.manual_seed(args.seed + 1 + rank)
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)

    best = float("inf")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            loss = ddp(ids).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        ppl, local_nll, tokens = perplexity(ddp.module, mine)
        log.info("epoch %d: %d held-out tokens here, local nll %.3f", epoch, tokens, local_nll)
        if ppl < best:
            best = ppl
            if rank == 0:
                torch.save({"epoch": epoch, "ppl": ppl, "model": ddp.module.state_dict()}, args.out)
        if rank == 0:
            log.info("epoch %d: perplexity %.3f (best %.3f)", epoch, ppl, best)

    dist.barrier()
    state = torch.load(args.out, map_location="cpu")
    ddp.module.load_state_dict(state["model"])
    ppl, _, _ = perplexity(ddp.module, mine)
    if rank == 0:
        log.info("reloaded epoch %d: perplexity %.3f", state["epoch"], ppl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
