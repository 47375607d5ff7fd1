"""Two trainers and one dedicated evaluator that scores weight snapshots in the background."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from evaluator import SnapshotSender, evaluation_loop

log = logging.getLogger("train")


def build_model():
    return nn.Sequential(
        nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 48, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 6)
    )


class WaveForms:
    def __init__(self, seed, length=48):
        self.gen = torch.Generator().manual_seed(seed)
        self.t = torch.linspace(0, 1, length)

    def batch(self, n):
        y = torch.randint(0, 6, (n,), generator=self.gen)
        phase = 6.28 * torch.rand(n, 3, 1, generator=self.gen)
        freq = (2.0 + y.float()).view(n, 1, 1)
        x = torch.sin(6.28 * freq * self.t + phase)
        return x + 0.8 * torch.randn(x.shape, generator=self.gen), y


def train(args, group):
    rank = dist.get_rank()
    model = DDP(build_model(), process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = WaveForms(args.seed * 31 + rank)
    sender = SnapshotSender(model.module, dst=args.trainers) if rank == 0 else None
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.eval_every == 0 and sender is not None:
            sender.send()
            log.info("step %d loss %.4f", step, loss.item())
    if sender is not None:
        sender.flush()
        scores = torch.empty(args.steps // args.eval_every)
        dist.recv(scores, src=args.trainers)
        log.info("best snapshot: step %d accuracy %.4f", (scores.argmax().item() + 1) * args.eval_every, scores.max())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--eval_every", type=int, default=20)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=8)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    args.trainers = dist.get_world_size() - 1
    group = dist.new_group(list(range(args.trainers)))
    torch.manual_seed(args.seed)
    if dist.get_rank() < args.trainers:
        train(args, group)
    else:
        val_x, val_y = WaveForms(4242).batch(768)
        evaluation_loop(build_model(), val_x, val_y, args.steps // args.eval_every, args.eval_every)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
