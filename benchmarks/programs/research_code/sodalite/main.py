"""Sequence-to-sequence toy with padded batches: loss normalised by target tokens of the whole update."""
import argparse
import logging
import math
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("s2s")
PAD = 0


class Reverse(Dataset):
    """Reverse a sequence of 3..14 symbols."""
    vocab = 20

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.seqs = [torch.randint(3, self.vocab, (int(torch.randint(3, 15, (1,), generator=g)),), generator=g) for _ in range(n)]

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        s = self.seqs[i]
        return s, torch.cat([torch.tensor([1]), s.flip(0), torch.tensor([2])])


def collate(b):
    return pad_sequence([x for x, _ in b], True, PAD), pad_sequence([y for _, y in b], True, PAD)


class Seq2Seq(nn.Module):
    def __init__(self, vocab, d=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Embedding(20, d)
        self.enc = nn.TransformerEncoderLayer(d, 4, 80, dropout=0.0, batch_first=True)
        self.dec = nn.TransformerDecoderLayer(d, 4, 80, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, x, y):
        embed = lambda t: self.emb(t) + self.pos(torch.arange(t.shape[1]))
        mem = self.enc(embed(x), src_key_padding_mask=x == PAD)
        causal = torch.triu(torch.ones(y.shape[1], y.shape[1], dtype=torch.bool), 1)
        h = self.dec(embed(y), mem, tgt_mask=causal, memory_key_padding_mask=x == PAD)
        return self.out(h)


class UpdateIterator:
    """Yields lists of micro-batches along with the number of target tokens that all ranks hold in that list."""

    def __init__(self, loader, accum):
        self.loader, self.accum = loader, accum

    def __iter__(self):
        it = iter(self.loader)
        while True:
            group = [b for _, b in zip(range(self.accum), it)]
            if not group:
                return
            n = torch.tensor(float(sum((y[:, 1:] != PAD).sum().item() for _, y in group)))
            dist.all_reduce(n)
            yield group, n.item()


def run_update(model, opt, group, tokens, smoothing):
    world = dist.get_world_size()
    total = 0.0
    opt.zero_grad(set_to_none=True)
    for k, (x, y) in enumerate(group):
        with nullcontext() if k == len(group) - 1 else model.no_sync():
            logits = model(x, y[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing)
            (loss * world / tokens).backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 4.0)
    opt.step()
    return total, norm.item()


@torch.no_grad()
def exact_match(net, ds):
    """Teacher-forced exact match; strided parts, no padding of the set."""
    net.eval()
    part = list(range(dist.get_rank(), len(ds), dist.get_world_size()))
    x, y = collate([ds[i] for i in part])
    ok = ((net(x, y[:, :-1]).argmax(-1) == y[:, 1:]) | (y[:, 1:] == PAD)).float().mean(1)
    t = torch.tensor([ok.sum().item(), len(part)], dtype=torch.float64)
    dist.all_reduce(t)
    net.train()
    return (t[0] / t[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--update-batch", type=int, default=48)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--lr", type=float, default=0.25)
    p.add_argument("--smoothing", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=26)
    p.add_argument("--out", default="s2s_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed)
    train, dev = Reverse(768, 1), Reverse(100, 2)
    sampler = DistributedSampler(train, seed=a.seed, drop_last=True)
    loader = DataLoader(train, a.update_batch // (world * a.accum), sampler=sampler, collate_fn=collate, drop_last=True)
    model = DDP(Seq2Seq(Reverse.vocab))
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    updates = UpdateIterator(loader, a.accum)
    per_epoch = math.ceil(len(loader) / a.accum)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.epochs * per_epoch)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        s = torch.zeros(3, dtype=torch.float64)
        for group, tokens in updates:
            total, norm = run_update(model, opt, group, tokens, a.smoothing)
            sched.step()
            s += torch.tensor([total, tokens / world, norm], dtype=torch.float64)
        dist.all_reduce(s)
        log.info("epoch %d loss/token %.5f |g| %.4f dev token acc %.4f", epoch, s[0] / s[1], s[2] / world / per_epoch, exact_match(model.module, dev))
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(a.out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
