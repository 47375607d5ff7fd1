"""GPT pretraining (DDP), sharded checkpoints written in the background."""
import argparse
import json
import logging
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from saver import AsyncSaver

log = logging.getLogger("pretrain")


class DecoderBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.wqkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab, d, h, n, ctx):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.Sequential(*[DecoderBlock(d, h) for _ in range(n)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids, labels):
        x = self.blocks(self.tok(ids) + self.pos.weight[:ids.shape[1]])
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Reader:
    def __init__(self, rank, batch, ctx, vocab):
        self.gen = torch.Generator().manual_seed(10 + rank)
        self.shape, self.vocab, self.read = (batch, 1), vocab, 0
        self.ctx = ctx

    def next(self):
        a = torch.randint(0, self.vocab, self.shape, generator=self.gen)
        s = torch.randint(1, 5, self.shape, generator=self.gen)
        self.read += self.shape[0]
        seq = (a + s * torch.arange(self.ctx + 1)) % self.vocab
        return seq[:, :-1], seq[:, 1:]

    def state_dict(self):
        return {"read": self.read, "rng": self.gen.get_state()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--ctx", type=int, default=32)
    ap.add_argument("--vocab", type=int, default=200)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    box = [args.out or tempfile.mkdtemp(prefix="lm-")]
    dist.broadcast_object_list(box)

    torch.manual_seed(0)
    model = DDP(LM(args.vocab, args.dim, 4, args.layers, args.ctx))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    reader = Reader(rank, args.batch, args.ctx, args.vocab)
    saver = AsyncSaver(box[0])

    t0 = time.time()
    for step in range(1, args.steps + 1):
        ids, labels = reader.next()
        loss = model(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % args.save_every == 0:
            saver.save(step, model.module, opt, reader.state_dict())
        if step % args.log_every == 0:
            stats = torch.tensor([loss.item(), reader.read])
            dist.all_reduce(stats)
            log.info("step %d loss %.4f samples %d %.1fs", step, stats[0] / world, stats[1], time.time() - t0)
    saver.wait()
    dist.barrier()
    if rank == 0:
        with open(os.path.join(box[0], "latest.json")) as f:
            log.info("latest checkpoint: %s", json.load(f))
        if args.out is None:
            shutil.rmtree(box[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
