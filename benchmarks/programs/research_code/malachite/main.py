import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stream import ShardStream, write_shards


class CharLM(nn.Module):
    def __init__(self, vocab, dim=48, layers=1):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, layers, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


class Run:
    def __init__(self, args):
        self.args = args
        self.build_data()
        self.setup_distributed()
        self.build_model()

    def build_data(self):
        a = self.args
        root = os.path.join(tempfile.gettempdir(), f"charlm_shards_{os.environ.get('TORCHELASTIC_RUN_ID', 'x')}_{os.environ.get('MASTER_PORT', '0')}")
        self.rank = int(os.environ.get("RANK", 0))
        if self.rank == 0:
            write_shards(root, a.shards, a.docs_per_shard, a.seq_len, seed=a.seed)
        self.root = root
        self.train = ShardStream(root, "train", a.shards, seed=a.seed, buffer=24)
        self.valid = ShardStream(root, "valid", 2, seed=a.seed, buffer=0, split=False)

    def setup_distributed(self):
        dist.init_process_group("gloo")
        self.world = dist.get_world_size()
        level = logging.INFO if self.rank == 0 else logging.ERROR
        logging.basicConfig(level=level, format="%(levelname).1s %(message)s")
        self.log = logging.getLogger("charlm")
        torch.manual_seed(self.args.seed)
        dist.barrier()

    def build_model(self):
        a = self.args
        self.model = DistributedDataParallel(CharLM(ShardStream.vocab))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=a.lr, betas=(0.9, 0.98))
        total = a.epochs * a.shards * a.docs_per_shard // (a.batch * self.world)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.1, total_iters=total)
        self.loader = DataLoader(self.train, batch_size=a.batch, num_workers=a.workers)
        self.total = total

    def train_epoch(self, epoch, limit):
        self.model.train()
        self.train.set_epoch(epoch)
        stat = torch.zeros(2)
        for i, batch in enumerate(self.loader):
            if i == limit:
                break
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.opt.step()
            self.sched.step()
            stat += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(stat)
        return (stat[0] / stat[1]).item(), int(stat[1].item())

    @torch.no_grad()
    def perplexity(self):
        """All ranks read the small validation shards and score every world-th document."""
        self.model.eval()
        t = torch.zeros(2, dtype=torch.float64)
        for n, doc in enumerate(self.valid):
            if n % self.world != self.rank:
                continue
            x = doc.unsqueeze(0)
            logits = self.model.module(x[:, :-1])
            t[0] += F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="sum")
            t[1] += x.shape[1] - 1
        dist.all_reduce(t)
        return (t[0] / t[1]).exp().item()

    def fit(self):
        a = self.args
        per_epoch = a.shards * a.docs_per_shard // (a.batch * self.world)
        for epoch in range(a.epochs):
            loss, batches = self.train_epoch(epoch, per_epoch)
            self.log.info("epoch %d loss %.4f ppl %.2f batches %d lr %.1e", epoch, loss, self.perplexity(), batches,
                          self.sched.get_last_lr()[0])
        dist.barrier()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=int, default=8)
    p.add_argument("--docs-per-shard", type=int, default=48)
    p.add_argument("--seq-len", type=int, default=32)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--lr", type=float, default=8e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=9)
    run = Run(p.parse_args())
    run.fit()
    dist.destroy_process_group()
