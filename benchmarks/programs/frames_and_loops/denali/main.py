import argparse
import datetime
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bank import MemoryBank, bank_loss, node_members

log = logging.getLogger("retrieval")


@dataclass
class Config:
    dim_in: int = 48
    dim_emb: int = 24
    classes: int = 12
    samples: int = 1152
    batch_size: int = 16
    epochs: int = 3
    lr: float = 2e-3
    bank: int = 160
    margin: float = 0.1
    temperature: float = 0.2
    procs_per_node: int = 2
    log_every: int = 4
    seed: int = 3


def parse() -> Config:
    p = argparse.ArgumentParser()
    for name, value in vars(Config()).items():
        p.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return Config(**vars(p.parse_args()))


def build_data(cfg: Config):
    g = torch.Generator().manual_seed(cfg.seed)
    centres = torch.randn(cfg.classes, cfg.dim_in, generator=g)
    y = torch.arange(cfg.samples) % cfg.classes
    x = centres[y] + 0.7 * torch.randn(cfg.samples, cfg.dim_in, generator=g)
    yq = torch.arange(120) % cfg.classes
    xq = centres[yq] + 0.7 * torch.randn(120, cfg.dim_in, generator=g)
    return TensorDataset(x, y), (xq, yq)


class Embedder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(cfg.dim_in, 96), nn.LayerNorm(96), nn.GELU(),
            nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU(),
        )
        self.proj = nn.Linear(96, cfg.dim_emb)

    def forward(self, x):
        return F.normalize(self.proj(self.trunk(x)), dim=-1)


class Trainer:
    def __init__(self, cfg: Config, rank: int, world: int):
        self.cfg, self.rank, self.world = cfg, rank, world
        torch.manual_seed(cfg.seed)
        self.model = DDP(Embedder(cfg))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        data, self.queries = build_data(cfg)
        self.sampler = DistributedSampler(data, world, rank, shuffle=True, seed=cfg.seed)
        self.loader = DataLoader(data, cfg.batch_size, sampler=self.sampler, drop_last=True)
        steps = cfg.epochs * len(self.loader)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps)
        members = node_members(rank, world, cfg.procs_per_node)
        self.bank = MemoryBank(cfg.bank, cfg.dim_emb, members)
        self.eval_group = None
        self.step = 0

    def train_epoch(self, epoch: int) -> None:
        self.model.train()
        self.sampler.set_epoch(epoch)
        for x, y in self.loader:
            emb = self.model(x)
            loss = bank_loss(emb, y, *self.bank.view(), self.cfg.margin, self.cfg.temperature)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            self.sched.step()
            self.bank.push(emb, y)
            self.step += 1
            if self.step % self.cfg.log_every == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if self.rank == 0:
                    log.info("epoch %d step %d loss %.4f bank %d", epoch, self.step,
                             mean.item() / self.world, min(self.bank.seen, self.cfg.bank))

    @torch.no_grad()
    def recall(self) -> float:
        if self.eval_group is None:
            self.eval_group = dist.new_group(timeout=datetime.timedelta(hours=2))
        self.model.eval()
        xq, yq = self.queries
        emb = self.model.module(xq[self.rank::self.world])
        ref, ref_y = self.model.module(xq), yq
        sim = emb @ ref.t()
        mine = torch.arange(self.rank, len(xq), self.world)
        sim[torch.arange(len(mine)), mine] = -2.0
        hit = ref_y[sim.argmax(1)].eq(yq[mine]).float().sum()
        count = torch.stack([hit, torch.tensor(float(len(mine)))])
        dist.all_reduce(count, group=self.eval_group)
        return (count[0] / count[1]).item()


def main():
    cfg = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    trainer = Trainer(cfg, rank, world)
    for epoch in range(cfg.epochs):
        trainer.train_epoch(epoch)
        r1 = trainer.recall()
        log.info("epoch %d recall@1 %.3f", epoch, r1)
    if rank == 0:
        os.makedirs("out_denali", exist_ok=True)
        torch.save(trainer.model.module.state_dict(), "out_denali/embedder.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
