"""Instruction tuning of a small decoder on variable length dialogues (loss on answers only)."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

IGNORE = -100
logger = logging.getLogger("sft")


class Dialogues(Dataset):
    def __init__(self, n, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            q = torch.randint(4, 12, (1,), generator=g).item()
            a = torch.randint(2, 36, (1,), generator=g).item()
            prompt = torch.randint(4, vocab, (q,), generator=g)
            answer = (prompt[torch.arange(a) % q] * 3 + torch.arange(a)) % (vocab - 4) + 4
            self.rows.append((prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORE)
    for i, (p, a) in enumerate(rows):
        seq = torch.cat([p, a])
        ids[i, : len(seq)] = seq
        labels[i, len(p): len(seq)] = a
    return ids, labels


class Decoder(nn.Module):
    def __init__(self, vocab, dim=64, layers=2, heads=4, ctx=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.triu(torch.full((t, t), float("-inf")), 1)
        h = self.tok(ids) + self.pos(torch.arange(t))
        return self.lm_head(self.blocks(h, mask=mask))


def token_sum_loss(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="sum")


def windows(loader, size):
    buf = []
    for b in loader:
        buf.append(b)
        if len(buf) == size:
            yield buf
            buf = []


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = Dialogues(480, args.vocab, args.seed)
    sampler = DistributedSampler(data, shuffle=True, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=pad, drop_last=True)
    model = DDP(Decoder(args.vocab))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    warm = 5
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm))
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for micro in windows(loader, args.accum):
            # number of supervised tokens in the whole effective batch
            n_tok = torch.tensor(float(sum((lab[:, 1:] != IGNORE).sum() for _, lab in micro)))
            dist.all_reduce(n_tok)
            total = 0.0
            for j, (ids, labels) in enumerate(micro):
                model.require_backward_grad_sync = j == len(micro) - 1
                loss = token_sum_loss(model(ids), labels) / n_tok
                loss.backward()
                total += loss.item()
            gnorm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            step += 1
            if step % 5 == 0:
                logger.info("step %d tokens %d gnorm %.3f lr %.3g", step, int(n_tok), gnorm, sched.get_last_lr()[0])
    val = Dialogues(32, args.vocab, args.seed + 1)
    with torch.no_grad():
        ids, labels = pad(val.rows)
        nll = token_sum_loss(model.module(ids), labels) / (labels[:, 1:] != IGNORE).sum()
    logger.info("val ppl %.2f after %d steps", math.exp(nll.item()), step)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--micro-batch", type=int, default=6)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--clip", type=float, default=10.0)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(name)s %(message)s")
    run(args)
    dist.destroy_process_group()
