"""Federated averaging with progressive unfreezing; each rank is one client with its own distribution."""
import argparse
import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from client_data import ClientLoader, make_client, make_server_set


@dataclass
class FedConfig:
    rounds: int = 9
    local_steps: int = 12
    unfreeze_at: tuple = (3, 6)
    batch: int = 20
    lr: float = 0.05
    server_lr: float = 1.0
    prox: float = 0.01
    seed: int = 2


class Tower(nn.Module):
    """Three stages and a head; lower stages start frozen."""

    def __init__(self, d=16, width=40, classes=5):
        super().__init__()
        mk = lambda i: nn.Sequential(nn.Linear(i, width), nn.LayerNorm(width), nn.GELU())
        self.stages = nn.ModuleList([mk(d), mk(width), mk(width)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for s in self.stages:
            x = s(x)
        return self.head(x)

    def freeze_all_but(self, first_trainable):
        for i, s in enumerate(self.stages):
            s.requires_grad_(i >= first_trainable)


class Averager:
    """Weighted average of client deltas over one flat buffer (weights are client sample counts)."""

    def __init__(self, model, num_samples, server_lr):
        self.params = list(model.parameters())
        total = torch.tensor(float(num_samples))
        dist.all_reduce(total)
        self.weight = num_samples / total.item()
        self.server_lr = server_lr

    def snapshot(self):
        return [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def apply(self, before):
        delta = torch.cat([(p - b).reshape(-1) for p, b in zip(self.params, before)]) * self.weight
        dist.all_reduce(delta)
        off = 0
        for p, b in zip(self.params, before):
            n = p.numel()
            p.copy_(b + self.server_lr * delta[off:off + n].view_as(p))
            off += n
        return delta.norm().item()


class Federation:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = Tower()
        self.model.freeze_all_but(2)
        self.first = 2
        x, y = make_client(self.rank, cfg.seed)
        self.n = len(x)
        self.loader = iter(ClientLoader(x, y, cfg.batch, seed=cfg.seed * 100 + self.rank))
        self.test = make_server_set(cfg.seed)
        self.averager = Averager(self.model, self.n, cfg.server_lr)
        self.make_optimizer()

    def make_optimizer(self):
        params = [p for p in self.model.parameters() if p.requires_grad]
        self.opt = torch.optim.SGD(params, lr=self.cfg.lr, momentum=0.9)

    def maybe_unfreeze(self, rnd):
        if rnd in self.cfg.unfreeze_at:
            self.first -= 1
            self.model.freeze_all_but(self.first)
            self.make_optimizer()
            if self.rank == 0:
                n = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
                print(f"round {rnd}: training from stage {self.first} on, {n} weights", flush=True)

    def local_training(self):
        anchor = [p.detach().clone() for p in self.model.parameters()]
        self.opt.state.clear()
        total = 0.0
        for _ in range(self.cfg.local_steps):
            x, y = next(self.loader)
            loss = F.cross_entropy(self.model(x), y)
            prox = sum(((p - a) ** 2).sum() for p, a in zip(self.model.parameters(), anchor) if p.requires_grad)
            self.opt.zero_grad()
            (loss + 0.5 * self.cfg.prox * prox).backward()
            self.opt.step()
            total += loss.item()
        return total / self.cfg.local_steps

    @torch.no_grad()
    def server_accuracy(self):
        x, y = self.test
        sl = slice(self.rank * len(x) // self.world, (self.rank + 1) * len(x) // self.world)
        hit = (self.model(x[sl]).argmax(1) == y[sl]).sum().double()
        dist.all_reduce(hit)
        return hit.item() / len(x)

    def run(self):
        best = (0.0, None)
        for rnd in range(self.cfg.rounds):
            self.maybe_unfreeze(rnd)
            before = self.averager.snapshot()
            loss = torch.tensor(self.local_training())
            norm = self.averager.apply(before)
            dist.all_reduce(loss)
            acc = self.server_accuracy()
            if acc > best[0]:
                best = (acc, copy.deepcopy(self.model.state_dict()))
            if self.rank == 0:
                print(f"round {rnd} client loss {loss.item() / self.world:.4f} update {norm:.3f} acc {acc:.3f}", flush=True)
        if self.rank == 0:
            torch.save(best[1], "fed_best.pt")
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--local-steps", type=int, default=12)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    Federation(FedConfig(rounds=a.rounds, local_steps=a.local_steps)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
