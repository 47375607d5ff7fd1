"""Fault-tolerant data-parallel training. --fault-steps rehearses the loss of a device on the last worker."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from membership import Membership

log = logging.getLogger("ft")


class DeviceFault(RuntimeError):
    pass


class RoundOver(RuntimeError):
    """Some member reported a fault together with its gradients."""


class Rehearsal:
    """Game-day helper: raises once per listed step."""

    def __init__(self, steps, active):
        self.steps = set(steps) if active else set()

    def check(self, step):
        if step in self.steps:
            self.steps.discard(step)
            raise DeviceFault(f"simulated uncorrectable error at step {step}")


class Worker:
    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(args.dim, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 10))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.w = torch.randn(args.dim, 10, generator=torch.Generator().manual_seed(2))
        self.step = 0
        self.faulty = False

    def path(self, step):
        return os.path.join(self.args.out, f"worker{self.rank}-step{step}.pt")

    def save(self):
        torch.save({"step": self.step, "net": self.net.state_dict(), "opt": self.opt.state_dict()}, self.path(self.step))

    def restore(self):
        """Newest checkpoint which every member has."""
        newest = torch.tensor([self.step - self.step % self.args.save_every])
        dist.all_reduce(newest, op=dist.ReduceOp.MIN)
        state = torch.load(self.path(int(newest)))
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.step = state["step"]
        log.info("resuming at step %d", self.step)

    def batch(self):
        g = torch.Generator().manual_seed(self.step * 101 + self.rank)
        x = torch.randn(self.args.batch, self.args.dim, generator=g)
        return x, (x @ self.w).argmax(1)

    def gradients(self, rehearsal):
        x, y = self.batch()
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad(set_to_none=False)
        loss.backward()
        rehearsal.check(self.step)
        return loss.item(), torch.cat([p.grad.flatten() for p in self.net.parameters()])

    def train_step(self, rehearsal):
        self.faulty = False
        try:
            loss, flat = self.gradients(rehearsal)
        except DeviceFault as e:
            log.error("%s", e)
            self.faulty = True
            flat = torch.zeros(sum(p.numel() for p in self.net.parameters()))
        # the last element counts the members which cannot go on
        flat = torch.cat([flat, torch.tensor([float(self.faulty)])])
        dist.all_reduce(flat)
        if flat[-1] > 0:
            raise RoundOver(f"{int(flat[-1])} member(s) reported a fault at step {self.step}")
        flat /= dist.get_world_size()
        at = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        self.opt.step()
        self.step += 1
        return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=140)
    p.add_argument("--save-every", type=int, default=20)
    p.add_argument("--fault-steps", type=int, nargs="*", default=[47, 93])
    p.add_argument("--cooldown", type=float, default=3.0, help="seconds a faulty device is given to come back")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", default=f"/tmp/ft-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    members = Membership()
    logging.basicConfig(level=logging.INFO, format=f"[{members.rank}] %(name)s %(message)s")
    os.makedirs(args.out, exist_ok=True)
    members.join()
    worker = Worker(args, members.rank)
    rehearsal = Rehearsal(args.fault_steps, active=members.rank == members.world - 1)
    worker.save()

    while worker.step < args.steps:
        try:
            loss = worker.train_step(rehearsal)
            if worker.step % args.save_every == 0:
                worker.save()
                if members.rank == 0:
                    log.info("step %3d  loss %.4f", worker.step, loss)
        except RoundOver as e:
            if worker.faulty:
                members.leave()
                time.sleep(args.cooldown)
            members.next_round(e)
            worker.restore()

    dist.barrier()
    members.leave()
    log.info("finished in membership round %d", members.round)


if __name__ == "__main__":
    main()
