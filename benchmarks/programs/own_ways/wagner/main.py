"""Two-stage pipeline for sequence classification."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

from pipe import FillDrain, Link
from stages import Back, Front


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--seq", type=int, default=24)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--vocab", type=int, default=60)
    p.add_argument("--classes", type=int, default=5)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--eval-every", type=int, default=10)
    p.add_argument("--seed", type=int, default=6)
    return p.parse_args()


class Source:
    """Same stream in both stages; the front uses the tokens, the back the labels."""

    def __init__(self, a, seed):
        self.a = a
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        a = self.a
        y = torch.randint(a.classes, (a.batch,), generator=self.gen)
        span = a.vocab // a.classes
        own = torch.randint(span, (a.batch, a.seq), generator=self.gen) + y[:, None] * span
        other = torch.randint(a.vocab, (a.batch, a.seq), generator=self.gen)
        keep = torch.rand(a.batch, a.seq, generator=self.gen) < 0.3
        return torch.where(keep, own, other), y


class Worker:
    def __init__(self, a):
        self.a = a
        self.stage = dist.get_rank()
        torch.manual_seed(a.seed + self.stage)
        self.module = Front(a.vocab, a.width, a.seq) if self.stage == 0 else Back(a.width, a.classes)
        self.link = Link(1 - self.stage, (a.batch // a.micro, a.seq, a.width))
        self.schedule = FillDrain(self.stage, self.module, self.link, a.micro)
        self.opt = torch.optim.AdamW(self.module.parameters(), lr=a.lr, weight_decay=0.01)
        self.lr = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1, (s + 1) / 5) * (0.55 + 0.45 * math.cos(math.pi * s / a.steps)))

    def step(self, ids, y):
        self.opt.zero_grad(set_to_none=True)
        if self.stage == 0:
            self.schedule.run_front(ids.chunk(self.a.micro))
            loss = None
        else:
            loss = self.schedule.run_back(y.chunk(self.a.micro), F.cross_entropy)
        self.clip()
        self.opt.step()
        self.lr.step()
        return loss

    def clip(self):
        square = sum(p.grad.pow(2).sum() for p in self.module.parameters())
        square = torch.as_tensor(square).reshape(1)
        dist.all_reduce(square)
        factor = self.a.clip / (square.sqrt().item() + 1e-6)
        if factor < 1:
            for p in self.module.parameters():
                p.grad.mul_(factor)

    @torch.no_grad()
    def evaluate(self, source, batches=3):
        hits = 0
        for b in range(batches):
            ids, y = source.next()
            for k, (part, label) in enumerate(zip(ids.chunk(self.a.micro), y.chunk(self.a.micro))):
                if self.stage == 0:
                    self.link.send(self.module(part), tag=k)
                    self.link.flush()
                else:
                    hits += (self.module(self.link.receive(tag=k)).argmax(-1) == label).sum().item()
        return hits / (batches * self.a.batch)


def main():
    a = arguments()
    dist.init_process_group("gloo")
    assert dist.get_world_size() == 2 and a.batch % a.micro == 0
    worker = Worker(a)
    train, valid = Source(a, 11), Source(a, 12)
    for step in range(1, a.steps + 1):
        loss = worker.step(*train.next())
        if worker.stage == 1 and step % 5 == 0:
            print(f"step {step} loss {loss:.4f} lr {worker.lr.get_last_lr()[0]:.2e}", flush=True)
        if step % a.eval_every == 0:
            acc = worker.evaluate(valid)
            if worker.stage == 1:
                print(f"step {step} accuracy {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
