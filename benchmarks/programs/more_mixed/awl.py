"""Two-stage pipeline (1F1B) over a stack of residual blocks."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        return x + torch.tanh(self.fc(self.norm(x)))


def make_stage(index, count, d=24, depth=6, d_in=12, classes=4):
    layers = [nn.Linear(d_in, d)] + [Block(d) for _ in range(depth)] + [nn.Linear(d, classes)]
    cut = len(layers) // count
    lo = index * cut
    hi = len(layers) if index == count - 1 else lo + cut
    return nn.Sequential(*layers[lo:hi])


def batch(gen, n):
    x = torch.randn(n, 12, generator=gen)
    return x, (x[:, :4] + 0.5 * x[:, 4:8]).argmax(1)


class PipelineTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(6)
        self.module = make_stage(self.rank, self.world)
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, n_microbatches=args.micro, loss_fn=F.cross_entropy)
        self.opt = torch.optim.AdamW(self.module.parameters(), lr=args.lr)
        self.gen = torch.Generator().manual_seed(88)

    def step(self):
        x, y = batch(self.gen, self.args.bs)
        self.opt.zero_grad()
        losses = []
        if self.rank == 0:
            self.schedule.step(x)
        elif self.rank == self.world - 1:
            self.schedule.step(target=y, losses=losses)
        else:
            self.schedule.step()
        self.opt.step()
        return sum(l.item() for l in losses) / len(losses) if losses else None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--bs", type=int, default=64)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = PipelineTrainer(args)
    for i in range(args.steps):
        loss = trainer.step()
        if loss is not None and i % 6 == 0:
            print(f"step {i} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
