"""Character language model with length-bucketed documents."""
import argparse
import logging
import math
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from memory import ActivationBudget, OutOfBudget
from text import DocumentShards

log = logging.getLogger("jialing")


class Block(nn.Module):
    def __init__(self, dim, heads, budget):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.budget = budget

    def forward(self, x):
        b, t, d = x.shape
        self.budget.claim(b * self.heads * t * t * 4)
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class CharLM(nn.Module):
    def __init__(self, vocab, dim, heads, layers, max_len, budget):
        super().__init__()
        self.budget = budget
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(max_len, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, budget) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        self.budget.reset()
        x = self.emb(ids[:, :-1]) + self.pos[: ids.size(1) - 1]
        for blk in self.blocks:
            x = blk(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids[:, 1:].flatten())


def lr_at(step, warm, total, peak):
    if step < warm:
        return peak * (step + 1) / warm
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


class Trainer:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        torch.manual_seed(args.seed)
        budget = ActivationBudget(args.budget_mb * 2**20)
        self.shards = DocumentShards(args.docs, args.seed, rank, world, args.batch)
        net = CharLM(self.shards.vocab, args.dim, args.heads, args.layers, self.shards.longest, budget)
        self.model = DDP(net)
        self.opt = torch.optim.AdamW(net.parameters(), lr=args.lr, betas=(0.9, 0.95))
        self.step_no = 0
        self.dropped = 0

    def train_step(self, ids):
        loss, fits = None, torch.ones(1)
        try:
            loss = self.model(ids)
        except OutOfBudget as err:
            log.warning("batch of shape %s left out: %s", tuple(ids.shape), err)
            fits.zero_()
        dist.all_reduce(fits, op=dist.ReduceOp.MIN)
        if fits.item() < 1:
            self.dropped += 1
            return None
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        for group in self.opt.param_groups:
            group["lr"] = lr_at(self.step_no, self.args.warmup, self.args.epochs * len(self.shards), self.args.lr)
        self.opt.step()
        self.step_no += 1
        return loss.item()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            loss = self.model.module(self.shards.validation())
        self.model.train()
        dist.barrier()
        parts = [torch.zeros(1) for _ in range(self.world)]
        dist.all_gather(parts, loss.view(1))
        return torch.cat(parts).mean().item()

    def fit(self):
        for epoch in range(self.args.epochs):
            self.shards.set_epoch(epoch)
            for i, ids in enumerate(self.shards):
                loss = self.train_step(ids)
                if loss is not None and self.rank == 0 and i % self.args.log_every == 0:
                    log.info("epoch %d it %d loss %.3f", epoch, i, loss)
            val = self.validate()
            if self.rank == 0:
                log.info("epoch %d done, validation %.3f", epoch, val)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=480)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warmup", type=int, default=8)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--budget-mb", type=float, default=6.0)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    random.seed(args.seed + rank)
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(levelname)s %(message)s")
    trainer = Trainer(args, rank, world)
    trainer.fit()
    if rank == 0:
        log.info("steps %d, batches left out %d", trainer.step_no, trainer.dropped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
