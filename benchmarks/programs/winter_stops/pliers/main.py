"""Pipeline training with a V-shaped stage placement on three workers."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from schedule import placement, plan

log = logging.getLogger("vpipe")


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


def make_stage(s, stages, args):
    torch.manual_seed(200 + s)
    if s == 0:
        return nn.Sequential(nn.Linear(args.features, args.dim), Block(args.dim))
    if s == stages - 1:
        return nn.Sequential(Block(args.dim), nn.Linear(args.dim, args.classes))
    return Block(args.dim)


class Runner:
    def __init__(self, args, rank, world):
        self.args, self.rank = args, rank
        self.owner = placement(world)
        self.stages = len(self.owner)
        self.nets = nn.ModuleDict({str(s): make_stage(s, self.stages, args) for s in range(self.stages) if self.owner[s] == rank})
        self.ops = plan(world, args.micros, args.in_flight)[rank]

    def _tag(self, kind, stage, micro):
        return (stage * self.args.micros + micro) * 2 + (kind == "B")

    def _send(self, tensor, kind, stage, micro):
        tensor = tensor.contiguous()
        work = dist.isend(tensor, dst=self.owner[stage], tag=self._tag(kind, stage, micro))
        self.outbox.append((work, tensor))

    def _recv(self, kind, stage, micro, src):
        buf = torch.empty(self.args.micro_size, self.args.dim)
        dist.recv(buf, src=self.owner[src], tag=self._tag(kind, stage, micro))
        return buf

    def step(self, x, y):
        xs, ys = x.split(self.args.micro_size), y.split(self.args.micro_size)
        self.outbox, saved, loss = [], {}, 0.0
        for op in self.ops:
            s, m = op.stage, op.micro
            if op.kind == "F":
                inp = xs[m] if s == 0 else self._recv("F", s, m, s - 1).requires_grad_()
                out = self.nets[str(s)](inp)
                if s == self.stages - 1:
                    out = nn.functional.cross_entropy(out, ys[m]) / self.args.micros
                    loss += out.item()
                else:
                    self._send(out.detach(), "F", s + 1, m)
                saved[s, m] = (inp, out)
            else:
                inp, out = saved.pop((s, m))
                if s == self.stages - 1:
                    out.backward()
                else:
                    out.backward(self._recv("B", s, m, s + 1))
                if s > 0:
                    self._send(inp.grad, "B", s - 1, m)
        for work, _ in self.outbox:
            work.wait()
        return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--micros", type=int, default=4)
    p.add_argument("--micro-size", type=int, default=32)
    p.add_argument("--in-flight", type=int, default=3)
    p.add_argument("--features", type=int, default=40)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    runner = Runner(args, rank, world)
    log.info("stages %s, %d operations a step", sorted(runner.nets), len(runner.ops))
    opt = torch.optim.AdamW(runner.nets.parameters(), lr=args.lr)

    g = torch.Generator().manual_seed(31)
    w = torch.randn(args.features, args.classes, generator=g)
    start = time.time()
    for step in range(1, args.steps + 1):
        x = torch.randn(args.micros * args.micro_size, args.features, generator=g)
        opt.zero_grad(set_to_none=True)
        loss = runner.step(x, (x @ w).argmax(1))
        opt.step()
        if rank == 0 and step % 10 == 0:
            log.info("step %3d  loss %.4f  %.1fs", step, loss, time.time() - start)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
