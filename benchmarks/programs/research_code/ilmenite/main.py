"""Masked item prediction over a catalogue; big item table, small batches, gradient accumulation."""
import argparse
import contextlib
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("rec")


@dataclass
class Cfg:
    items: int = 40000
    dim: int = 64
    length: int = 10
    users: int = 640
    micro: int = 8
    accum: int = 8
    negatives: int = 64
    epochs: int = 2
    lr: float = 2e-3
    clip: float = 1.0
    seed: int = 14


class Sessions(Dataset):
    """Walks over item clusters; the target is the last item."""

    def __init__(self, cfg, seed):
        g = torch.Generator().manual_seed(seed)
        c = torch.randint(0, 50, (cfg.users, 1), generator=g)
        pos = torch.randint(0, 20, (cfg.users, cfg.length + 1), generator=g)
        self.seq = c * 20 + pos
        self.seq[torch.rand(self.seq.shape, generator=g) < 0.1] = int(cfg.items // 2)
        self.neg = torch.randint(0, cfg.items, (cfg.users, cfg.negatives), generator=g)

    def __len__(self):
        return len(self.seq)

    def __getitem__(self, i):
        return self.seq[i, :-1], self.seq[i, -1], self.neg[i]


class SessionModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.items = nn.Embedding(cfg.items, cfg.dim)
        nn.init.normal_(self.items.weight, std=0.1)
        self.pos = nn.Parameter(torch.randn(cfg.length, cfg.dim) * 0.02)
        self.mix = nn.TransformerEncoderLayer(cfg.dim, 4, 2 * cfg.dim, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, seq, target, neg):
        h = self.norm(self.mix(self.items(seq) + self.pos).mean(1))
        cand = self.items(torch.cat([target[:, None], neg], 1))
        return torch.einsum("bd,bnd->bn", h, cand) / h.shape[-1] ** 0.5


class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed + self.rank)
        self.train_set, self.test_set = Sessions(cfg, 1), Sessions(cfg, 2)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, cfg.micro, sampler=self.sampler, drop_last=True)
        self.model = DDP(SessionModel(cfg), gradient_as_bucket_view=True)
        self.opt = torch.optim.Adagrad(self.model.parameters(), lr=cfg.lr * 10)
        self.timer = {"forward": 0.0, "backward": 0.0, "update": 0.0}

    def windows(self):
        buf = []
        for b in self.loader:
            buf.append(b)
            if len(buf) == self.cfg.accum:
                yield buf
                buf = []
        if buf:
            yield buf

    def sync_context(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def update(self, window):
        total = 0.0
        for k, (seq, target, neg) in enumerate(window):
            t0 = time.perf_counter()
            with self.sync_context(k == len(window) - 1):
                scores = self.model(seq, target, neg)
                loss = F.cross_entropy(scores, torch.zeros(len(seq), dtype=torch.long))
                t1 = time.perf_counter()
                (loss / len(window)).backward()
            self.timer["forward"] += t1 - t0
            self.timer["backward"] += time.perf_counter() - t1
            total += loss.detach()
        t0 = time.perf_counter()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.opt.step()
        self.opt.zero_grad()
        self.timer["update"] += time.perf_counter() - t0
        return total / len(window)

    @torch.no_grad()
    def hit_rate(self, k=5):
        self.model.eval()
        hits = torch.zeros(2)
        for s in range(self.rank * 64, len(self.test_set), 64 * self.world):
            seq, tgt, neg = self.test_set.seq[s:s + 64, :-1], self.test_set.seq[s:s + 64, -1], self.test_set.neg[s:s + 64]
            sc = self.model.module(seq, tgt, neg)
            hits += torch.tensor([(sc.topk(k).indices == 0).any(1).sum().item(), len(seq)], dtype=torch.float)
        dist.all_reduce(hits)
        self.model.train()
        return (hits[0] / hits[1]).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            t0, acc, n = time.time(), torch.zeros(()), 0
            for w in self.windows():
                acc += self.update(w)
                n += 1
            dist.all_reduce(acc)
            parts = " ".join(f"{k} {v:.1f}s" for k, v in self.timer.items())
            log.info("epoch %d loss %.4f hit@5 %.3f %.1fs (%s)", epoch, acc / n / self.world, self.hit_rate(), time.time() - t0, parts)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--items", type=int, default=40000)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Engine(Cfg(epochs=a.epochs, items=a.items)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
