"""Two ranks train, one rank scores snapshots; the parts have process groups of their own."""
import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("roles")


@dataclass
class Config:
    rounds: int = 3
    steps: int = 60
    batch: int = 32
    features: int = 16
    scorer_passes: int = 2
    pass_seconds: float = 1.5
    lr: float = 8e-3
    seed: int = 121


@dataclass
class Roles:
    trainers: list
    scorer: int
    train_group: object

    @classmethod
    def assign(cls, world):
        trainers, scorer = list(range(world - 1)), world - 1
        group = dist.new_group(trainers)
        return cls(trainers, scorer, group)


def build(cfg):
    torch.manual_seed(cfg.seed)
    return nn.Sequential(nn.Linear(cfg.features, 32), nn.Tanh(), nn.Linear(32, 1))


def truth(cfg):
    return 0.25 * torch.randn(cfg.features, generator=torch.Generator().manual_seed(cfg.seed))


def draw(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, cfg.features, generator=g)
    return x, torch.sin(x @ truth(cfg))[:, None]


def flatten(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


class TrainerRole:
    def __init__(self, cfg, roles, model):
        self.cfg, self.roles, self.model = cfg, roles, model
        self.rank = dist.get_rank()
        self.opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)

    def average_grads(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat, group=self.roles.train_group)
        flat /= len(self.roles.trainers)
        at = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def run_round(self, r):
        for s in range(self.cfg.steps):
            seed = (r * self.cfg.steps + s) * len(self.roles.trainers) + self.rank
            x, y = draw(self.cfg, self.cfg.batch, 10_000 + seed)
            loss = F.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.average_grads()
            self.opt.step()
        if self.rank == 0:
            log.info("round %d train loss %.4f", r, loss.item())
            dist.send(flatten(self.model), dst=self.roles.scorer, tag=r)
        return None


class ScorerRole:
    """Repeats its pass over the held-out set with input noise, which takes its time."""

    def __init__(self, cfg, roles, model):
        self.cfg, self.roles, self.model = cfg, roles, model
        self.x, self.y = draw(cfg, 2000, 7)

    @torch.no_grad()
    def run_round(self, r):
        flat = torch.empty_like(flatten(self.model))
        dist.recv(flat, src=0, tag=r)
        nn.utils.vector_to_parameters(flat, self.model.parameters())
        g = torch.Generator().manual_seed(r)
        total = 0.0
        for _ in range(self.cfg.scorer_passes):
            noisy = self.x + 0.05 * torch.randn(self.x.shape, generator=g)
            total += F.mse_loss(self.model(noisy), self.y).item()
            time.sleep(self.cfg.pass_seconds)
        return total / self.cfg.scorer_passes


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--pass-seconds", type=float, default=1.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(message)s")
    cfg = Config(rounds=args.rounds, pass_seconds=args.pass_seconds)
    roles = Roles.assign(world)
    model = build(cfg)
    role = (ScorerRole if rank == roles.scorer else TrainerRole)(cfg, roles, model)
    history = [role.run_round(r) for r in range(cfg.rounds)]
    box = [history if rank == roles.scorer else None]
    dist.broadcast_object_list(box, src=roles.scorer)
    best = min(range(cfg.rounds), key=lambda r: box[0][r])
    if rank == 0:
        log.info("held-out %s, best round %d", [round(v, 4) for v in box[0]], best)
    if rank in roles.trainers:
        flat = flatten(model)
        same = [torch.empty_like(flat) for _ in roles.trainers]
        dist.all_gather(same, flat, group=roles.train_group)
        log.info("largest difference between trainers %.1e",
                 max((s - flat).abs().max().item() for s in same))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
