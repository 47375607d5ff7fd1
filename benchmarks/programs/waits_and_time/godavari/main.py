import argparse
import logging
import math

import torch
import torch.distributed as dist
from torch import nn

from guard import StepGuard
from signals import SignalStream

log = logging.getLogger("godavari")


class Encoder(nn.Module):
    def __init__(self, width, dim, classes):
        super().__init__()
        self.stem = nn.Conv1d(1, dim, 7, stride=2, padding=3)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv1d(dim, dim, 5, stride=2, padding=2), nn.ReLU())
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x[:, None])).mean(-1))


class Scaler:
    """Loss scale for half precision; all ranks see the same verdicts, so the scale stays common."""

    def __init__(self, scale=2.0**12, patience=25):
        self.scale, self.patience, self.good = scale, patience, 0

    def verdict(self, ok):
        self.good = self.good + 1 if ok else 0
        if not ok:
            self.scale /= 2
        elif self.good >= self.patience:
            self.scale, self.good = self.scale * 2, 0


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = Encoder(args.width, args.dim, args.classes)
        self.params = list(self.model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=args.lr, momentum=0.9)
        self.stream = SignalStream(args, self.rank)
        self.guard = StepGuard(args.limit)
        self.scaler = Scaler()
        self.attempts = self.kept = 0

    def lr(self, step):
        return self.args.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.args.steps)))

    def compute(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        for p in self.params:
            p.grad = None
        (loss * self.scaler.scale).backward()
        flat = torch.cat([p.grad.float().reshape(-1) for p in self.params]) / self.scaler.scale
        return loss.item(), flat

    def apply(self, flat):
        at = 0
        for p in self.params:
            p.grad = flat[at:at + p.numel()].view_as(p).clone()
            at += p.numel()
        for group in self.opt.param_groups:
            group["lr"] = self.lr(self.kept)
        self.opt.step()

    def attempt(self):
        x, y = self.stream.draw()
        self.attempts += 1
        loss, flat = self.compute(x, y)
        ok = self.guard.everyone_fine(loss, flat)
        self.scaler.verdict(ok)
        if not ok:
            return None
        dist.all_reduce(flat)
        self.apply(flat / self.world)
        self.kept += 1
        return loss

    def fit(self):
        while self.kept < self.args.steps:
            loss, tries = self.attempt(), 1
            while loss is None:
                if tries == self.args.max_tries:
                    raise RuntimeError(f"no usable batch in {tries} tries")
                loss, tries = self.attempt(), tries + 1
            if self.rank == 0 and self.kept % 40 == 0:
                log.info("update %d (attempt %d) loss %.4f scale %g", self.kept, self.attempts, loss, self.scaler.scale)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--limit", type=float, default=1e4)
    ap.add_argument("--max-tries", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=63)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"({dist.get_rank()}) %(message)s")
    t = Trainer(args)
    t.fit()
    log.info("attempts %d updates %d set aside here %d weights %.9f", t.attempts, t.kept, t.guard.mine,
             sum(float(p.detach().double().sum()) for p in t.params))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
