"""GPT pretraining with a sharded Muon for matrices and AdamW for the rest.

    torchrun --nproc-per-node 3 whitefish/main.py
"""
import argparse
import contextlib
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig
from muon import DistributedMuon

log = logging.getLogger("speedrun")


@dataclass
class Config:
    vocab: int = 64
    block: int = 24
    layers: int = 2
    dim: int = 60
    heads: int = 4
    micro_batch: int = 4
    accum: int = 2
    steps: int = 24
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    cooldown: float = 0.4
    val_every: int = 8
    val_rows: int = 30
    seed: int = 2718


class ShardLoader:
    """All ranks walk the same token file, each takes its stripe of every batch."""

    def __init__(self, cfg: Config, rank: int, world: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        n = 600
        start = torch.randint(0, cfg.vocab, (n, 1), generator=g)
        stride = torch.randint(1, 6, (n, 1), generator=g)
        self.rows = (start + stride * torch.arange(cfg.block + 1)) % cfg.vocab
        self.cfg, self.rank, self.world, self.at = cfg, rank, world, 0

    def next(self):
        span = self.cfg.micro_batch * self.world
        if self.at + span > len(self.rows):
            self.at = 0
        lo = self.at + self.rank * self.cfg.micro_batch
        self.at += span
        rows = self.rows[lo:lo + self.cfg.micro_batch]
        return rows[:, :-1], rows[:, 1:]


def split_params(net: GPT):
    matrices = [p for b in net.blocks for p in b.parameters() if p.dim() == 2]
    ids = {id(p) for p in matrices}
    return matrices, [p for p in net.parameters() if id(p) not in ids]


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = GPT(GPTConfig(cfg.vocab, cfg.block, cfg.layers, cfg.heads, cfg.dim))
        self.model = DDP(net)
        matrices, rest = split_params(net)
        self.opts = [DistributedMuon(matrices, lr=cfg.muon_lr, weight_decay=0.01),
                     torch.optim.AdamW(rest, lr=cfg.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
        for o in self.opts:
            for g in o.param_groups:
                g["base_lr"] = g["lr"]
        self.train_data = ShardLoader(cfg, self.rank, self.world, cfg.seed)
        self.val = ShardLoader(cfg, 0, 1, cfg.seed + 1).rows[: cfg.val_rows]

    def set_lr(self, step: int):
        left = 1 - step / self.cfg.steps
        f = min(1.0, left / self.cfg.cooldown)
        for o in self.opts:
            for g in o.param_groups:
                g["lr"] = g["base_lr"] * max(f, 0.05)

    def loss(self, net, x, y):
        return F.cross_entropy(net(x).reshape(-1, self.cfg.vocab), y.reshape(-1))

    def train_step(self, step: int) -> float:
        self.set_lr(step)
        total = 0.0
        for i in range(self.cfg.accum):
            x, y = self.train_data.next()
            with self.model.no_sync() if i + 1 < self.cfg.accum else contextlib.nullcontext():
                loss = self.loss(self.model, x, y) / self.cfg.accum
                loss.backward()
            total += loss.item()
        for o in self.opts:
            o.step()
        self.model.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def validate(self) -> float:
        mine = self.val[self.rank::self.world]
        loss = self.loss(self.model.module, mine[:, :-1], mine[:, 1:]) * len(mine)
        t = torch.stack([loss, torch.tensor(float(len(mine)))])
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    def fit(self):
        for step in range(self.cfg.steps):
            loss = self.train_step(step)
            if (step + 1) % self.cfg.val_every == 0:
                val = self.validate()
                if self.rank == 0:
                    log.info("step %d train %.4f val %.4f", step + 1, loss, val)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--muon-lr", type=float, default=Config.muon_lr)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer(Config(steps=a.steps, muon_lr=a.muon_lr))
    t.fit()
    if t.rank == 0:
        torch.save(t.model.module.state_dict(), "whitefish.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
