"""Shared representation, personal heads: one site per process."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from clients import HospitalData

log = logging.getLogger("sites")


class PersonalisedModel(nn.Module):
    def __init__(self, dim, width, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


def broadcast_encoder(model):
    for p in model.encoder.parameters():
        dist.broadcast(p.data, src=0)


def average_encoder_grads(model, world):
    grads = [p.grad for p in model.encoder.parameters()]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=250)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--width", type=int, default=96)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--head_lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=6)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed + rank)
    data = HospitalData(rank, seed=args.seed)
    model = PersonalisedModel(24, args.width, data.classes)
    broadcast_encoder(model)
    shared_opt = torch.optim.AdamW(model.encoder.parameters(), lr=args.lr)
    personal_opt = torch.optim.AdamW(model.head.parameters(), lr=args.head_lr)

    for step in range(args.steps):
        x, y = data.batch(args.batch)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        average_encoder_grads(model, world)
        torch.nn.utils.clip_grad_norm_(model.encoder.parameters(), 1.0)
        shared_opt.step()
        personal_opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            losses = [torch.empty(1) for _ in range(world)]
            dist.all_gather(losses, loss.detach().reshape(1))
            if rank == 0:
                log.info("step %3d per-site loss %s", step, " ".join(f"{v.item():.4f}" for v in losses))

    x, y = data.batch(1000)
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().reshape(1)
    accs = [torch.empty(1) for _ in range(world)]
    dist.all_gather(accs, acc)
    if rank == 0:
        log.info("per-site accuracy %s", " ".join(f"{a.item():.3f}" for a in accs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
