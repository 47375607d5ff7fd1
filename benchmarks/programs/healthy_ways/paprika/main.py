"""Three tasks, one trunk: conflicting task gradients are projected after averaging over ranks."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from surgery import flatten, project_conflicts

TASKS = ("position", "colour", "count")


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 6, generator=g)
    lift = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    x = torch.tanh(z @ lift) + 0.1 * torch.randn(n, 30, generator=g)
    position = torch.stack([z[:, 0] + 0.3 * z[:, 1].pow(2), z[:, 2] - z[:, 0]], 1)
    colour = (z[:, 1] > 0).long() * 2 + (z[:, 3] > 0).long()
    count = (z[:, 4].abs() + z[:, 5].abs()).clamp(max=4).floor().long()
    return TensorDataset(x, position, colour, count)


class MultiTask(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleDict({"position": nn.Linear(width, 2), "colour": nn.Linear(width, 4), "count": nn.Linear(width, 5)})

    def losses(self, batch):
        x, position, colour, count = batch
        h = self.trunk(x)
        return [F.mse_loss(self.heads["position"](h), position),
                F.cross_entropy(self.heads["colour"](h), colour),
                F.cross_entropy(self.heads["count"](h), count)]


class SurgeonTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = MultiTask()
        self.shared = list(self.model.trunk.parameters())
        self.own = [list(self.model.heads[t].parameters()) for t in TASKS]
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.order = torch.Generator().manual_seed(args.seed)
        train = scenes(2400, 1)
        self.sampler = DistributedSampler(train, seed=args.seed)
        self.loader = DataLoader(train, batch_size=args.batch, sampler=self.sampler)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.epochs * len(self.loader))

    def gradients(self, losses):
        """One row for each task: trunk gradient, then that task's head gradient."""
        trunk, heads = [], []
        for i, loss in enumerate(losses):
            params = self.shared + self.own[i]
            grads = torch.autograd.grad(loss, params, retain_graph=i < len(losses) - 1)
            k = len(self.shared)
            trunk.append(flatten(grads[:k], self.shared))
            heads.append(flatten(grads[k:], self.own[i]))
        packed = torch.cat([torch.stack(trunk).flatten()] + heads)
        dist.all_reduce(packed)
        packed /= self.world
        size = trunk[0].numel()
        rows = packed[:size * len(losses)].view(len(losses), size)
        return rows, packed[size * len(losses):].split([h.numel() for h in heads])

    @staticmethod
    def assign(flat, params):
        for p, piece in zip(params, flat.split([p.numel() for p in params])):
            p.grad = piece.view_as(p).clone()

    def step(self, batch):
        losses = self.model.losses(batch)
        rows, heads = self.gradients(losses)
        merged, conflicts = project_conflicts(rows, self.order)
        self.assign(merged, self.shared)
        for flat, params in zip(heads, self.own):
            self.assign(flat, params)
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad(set_to_none=True)
        return torch.stack([l.detach() for l in losses]), conflicts

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        part = [t[self.rank::self.world] for t in data.tensors]
        s = torch.cat([torch.stack(self.model.losses(part)) * len(part[0]), torch.tensor([float(len(part[0]))])])
        dist.all_reduce(s)
        self.model.train()
        return (s[:-1] / s[-1]).tolist()

    def fit(self, held):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            total, conflicts = torch.zeros(3), 0
            for batch in self.loader:
                l, c = self.step(batch)
                total += l
                conflicts += c
            dist.all_reduce(total)
            total /= self.world * len(self.loader)
            held_losses = self.evaluate(held)
            if self.rank == 0:
                print(f"epoch {epoch} train {[round(v, 3) for v in total.tolist()]} held "
                      f"{[round(v, 3) for v in held_losses]} projections {conflicts}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=40)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=35)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = SurgeonTrainer(args)
    trainer.fit(scenes(600, 2))
    if trainer.rank == 0:
        os.makedirs("runs/paprika", exist_ok=True)
        torch.save(trainer.model.state_dict(), "runs/paprika/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
