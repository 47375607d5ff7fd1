"""Document tagging with length-budget batches; the ranks run out of data at different times."""
import argparse
import logging
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

log = logging.getLogger("tagger")


@dataclass
class Conf:
    docs: int = 420
    budget: int = 400
    vocab: int = 60
    tags: int = 5
    dim: int = 32
    epochs: int = 4
    lr: float = 6e-3
    seed: int = 52


def make_docs(c, n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, c.tags, (c.vocab,), generator=torch.Generator().manual_seed(2))
    docs = []
    for _ in range(n):
        m = int(6 + 40 * torch.rand((), generator=g) ** 2)
        w = torch.randint(1, c.vocab, (m,), generator=g)
        t = (table[w] + (w.roll(1) % 3 == 0).long()) % c.tags
        docs.append((w, t))
    return docs


class BudgetBatches:
    """Shuffles, deals documents to ranks, sorts pools by length and fills batches up to `budget` padded tokens."""

    def __init__(self, docs, budget, seed):
        self.len = [len(w) for w, _ in docs]
        self.budget, self.seed = budget, seed

    def epoch(self, n):
        rng = random.Random(self.seed * 1000 + n)
        order = list(range(len(self.len)))
        rng.shuffle(order)
        mine = order[dist.get_rank()::dist.get_world_size()]
        out = []
        for s in range(0, len(mine), 64):
            cur = []
            for i in sorted(mine[s:s + 64], key=self.len.__getitem__):
                if cur and self.len[i] * (len(cur) + 1) > self.budget:
                    out.append(cur)
                    cur = []
                cur.append(i)
            out.append(cur)
        rng.shuffle(out)
        return out


class Tagger(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.rnn = nn.GRU(c.dim, c.dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * c.dim, c.tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


class Fitter:
    def __init__(self, c):
        self.c = c
        torch.manual_seed(c.seed)
        self.train, self.dev = make_docs(c, c.docs, 1), make_docs(c, 80, 2)
        self.batches = BudgetBatches(self.train, c.budget, c.seed)
        self.model = DDP(Tagger(c))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=c.lr, weight_decay=1e-3)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.7)

    def batch(self, idx):
        x = pad_sequence([self.train[i][0] for i in idx], True, 0)
        y = pad_sequence([self.train[i][1] for i in idx], True, -100)
        return x, y

    def train_epoch(self, n):
        plan = self.batches.epoch(n)
        s = torch.zeros(2, dtype=torch.float64)
        with Join([self.model]):
            for idx in plan:
                x, y = self.batch(idx)
                loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                s += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        self.sched.step()
        dist.all_reduce(s)
        return (s[0] / s[1]).item(), len(plan)

    @torch.no_grad()
    def dev_accuracy(self):
        self.model.eval()
        t = torch.zeros(2, dtype=torch.float64)
        for w, y in self.dev[dist.get_rank()::dist.get_world_size()]:
            z = self.model.module(w[None])[0].argmax(-1)
            t += torch.tensor([(z == y).sum(), len(y)], dtype=torch.float64)
        dist.all_reduce(t)
        self.model.train()
        return (t[0] / t[1]).item()

    def fit(self):
        for n in range(self.c.epochs):
            loss, steps = self.train_epoch(n)
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, steps)
            log.info("epoch %d loss %.4f dev %.3f batches per rank %s", n, loss, self.dev_accuracy(), every)
        if dist.get_rank() == 0:
            torch.save(self.model.module.state_dict(), "tagger.pt")
        dist.barrier()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--budget", type=int, default=400)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Fitter(Conf(epochs=a.epochs, budget=a.budget)).fit()
    dist.destroy_process_group()
