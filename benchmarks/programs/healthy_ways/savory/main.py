"""A rank that only prepares data: trainers ask it for batches, it tokenises and serves them in turn."""
import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


NAMES = ["ada", "ben", "cleo", "dov", "eve", "finn"]
VERBS = {"gives": 1, "lends": 1, "takes": -1, "steals": -1, "brings": 1, "removes": -1}
THINGS = ["apples", "coins", "books", "stones"]


def story(r):
    """A short text and the sign of the balance of what happened."""
    parts, balance = [], 0
    for _ in range(r.randint(2, 5)):
        v = r.choice(list(VERBS))
        n = r.randint(1, 4)
        parts.append(f"{r.choice(NAMES)} {v} {n} {r.choice(THINGS)}")
        balance += VERBS[v] * n
    return " . ".join(parts), 0 if balance < 0 else (1 if balance == 0 else 2)


class Tokeniser:
    def __init__(self):
        words = NAMES + list(VERBS) + THINGS + ["."] + [str(i) for i in range(1, 5)]
        self.index = {w: i + 1 for i, w in enumerate(words)}

    def __len__(self):
        return len(self.index) + 1

    def encode(self, text, length):
        ids = [self.index[w] for w in text.split()][:length]
        return ids + [0] * (length - len(ids))


class DataServer:
    """Serves each trainer in turn; a batch is one message of shape (batch, length + 1)."""

    def __init__(self, args, trainers):
        self.args, self.trainers = args, trainers
        self.tok = Tokeniser()
        r = random.Random(args.seed)
        self.pool = [story(r) for _ in range(args.pool)]
        self.r = random.Random(args.seed + 1)

    def batches(self, count):
        order = []
        for _ in range(count):
            rows = []
            while len(rows) < self.args.batch:
                if not order:
                    order = list(range(len(self.pool)))
                    self.r.shuffle(order)
                text, label = self.pool[order.pop()]
                rows.append(self.tok.encode(text, self.args.length) + [label])
            yield torch.tensor(rows)

    def serve(self):
        pending = {t: None for t in self.trainers}
        source = self.batches(self.args.steps * len(self.trainers))
        for _ in range(self.args.steps):
            for t in self.trainers:
                batch = next(source)
                if pending[t] is not None:
                    pending[t][0].wait()
                pending[t] = (dist.isend(batch, dst=t), batch)
        for work, _ in pending.values():
            work.wait()


class RemoteBatches:
    """Iterates over what the server sends, always one receive ahead."""

    def __init__(self, args, server):
        self.args, self.server = args, server

    def _post(self):
        buf = torch.empty(self.args.batch, self.args.length + 1, dtype=torch.long)
        return dist.irecv(buf, src=self.server), buf

    def __iter__(self):
        ahead = self._post()
        for i in range(self.args.steps):
            work, buf = ahead
            work.wait()
            if i + 1 < self.args.steps:
                ahead = self._post()
            yield buf[:, :-1], buf[:, -1]


class Reader(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.mix = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        self.out = nn.Linear(dim, 3)

    def forward(self, ids):
        mask = (ids > 0).unsqueeze(-1).float()
        h = F.gelu(self.conv(self.emb(ids).transpose(1, 2))).transpose(1, 2) * mask
        return self.out(self.mix(h.sum(1) / 8))


def train(args, server, group, rank):
    torch.manual_seed(args.seed)
    tok = Tokeniser()
    model = DDP(Reader(len(tok)), process_group=group)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    r = random.Random(args.seed + 1000)
    fresh = [story(r) for _ in range(400)]
    x = torch.tensor([tok.encode(t, args.length) for t, _ in fresh])
    y = torch.tensor([l for _, l in fresh])
    size, me = dist.get_world_size(group), dist.get_rank(group)
    window = torch.zeros(2)
    for step, (ids, label) in enumerate(RemoteBatches(args, server), 1):
        loss = F.cross_entropy(model(ids), label)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        window += torch.tensor([loss.item(), 1.0])
        if step % 40 == 0:
            dist.all_reduce(window, group=group)
            with torch.no_grad():
                model.eval()
                hits = torch.tensor([(model.module(x[me::size]).argmax(1) == y[me::size]).sum().item(), len(y[me::size])])
                model.train()
            dist.all_reduce(hits, group=group)
            if me == 0:
                print(f"step {step} loss {(window[0] / window[1]).item():.4f} accuracy {(hits[0] / hits[1]).item():.3f}", flush=True)
            window.zero_()
    if me == 0:
        os.makedirs("runs/savory", exist_ok=True)
        torch.save(model.module.state_dict(), "runs/savory/reader.pt")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--length", type=int, default=26)
    ap.add_argument("--pool", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--seed", type=int, default=88)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = list(range(1, world))
    group = dist.new_group(trainers)
    if rank == 0:
        DataServer(args, trainers).serve()
    else:
        train(args, 0, group, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
