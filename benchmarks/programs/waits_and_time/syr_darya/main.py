import argparse
import logging
import os
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("syr_darya")


class StopVote:
    """Local reasons to stop become a common decision every few steps."""

    def __init__(self, every, deadline):
        self.every = every
        self.deadline = deadline
        self.signalled = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, *_):
        self.signalled = True

    def local_reason(self):
        if self.signalled:
            return 2
        if time.monotonic() > self.deadline:
            return 1
        return 0

    def decide(self, step):
        if step % self.every:
            return 0
        ballot = torch.tensor([self.local_reason()])
        dist.all_reduce(ballot, op=dist.ReduceOp.MAX)
        return int(ballot.item())


class Glider(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(), nn.Linear(hidden, n))

    def forward(self, x):
        return x + self.net(x)


def orbit_batch(g, batch, n):
    angle = torch.rand(batch, n // 2, generator=g) * 6.283
    radius = 0.5 + torch.rand(batch, n // 2, generator=g)
    now = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
    turn = angle + 0.3 / radius
    return now, torch.cat([radius * torch.cos(turn), radius * torch.sin(turn)], 1)


class Experiment:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(Glider(args.size, args.hidden))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.g = torch.Generator().manual_seed(args.seed * 50 + self.rank)
        self.vote = StopVote(args.vote_every, time.monotonic() + args.minutes * 60)
        self.step = 0

    def train_step(self):
        x, y = orbit_batch(self.g, self.args.batch, self.args.size)
        loss = nn.functional.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def checkpoint(self, why):
        gens = [None] * self.world
        dist.all_gather_object(gens, self.g.get_state())
        if self.rank == 0:
            torch.save(
                {"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "step": self.step, "gens": gens},
                os.path.join(self.folder, "resume.pt"),
            )
            log.info("saved at step %d (%s)", self.step, why)
        dist.barrier()

    def run(self):
        while self.step < self.args.steps:
            loss = self.train_step()
            self.step += 1
            if self.rank == 0 and self.step % 100 == 0:
                log.info("step %d loss %.5f", self.step, loss)
            if self.step == self.args.notice_step and self.rank == self.world - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            verdict = self.vote.decide(self.step)
            if verdict:
                self.checkpoint({1: "time is up", 2: "notice"}[verdict])
                return verdict
        self.checkpoint("complete")
        return 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=16)
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--vote-every", type=int, default=10)
    ap.add_argument("--minutes", type=float, default=3.0)
    ap.add_argument("--notice-step", type=int, default=433)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=36)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"{dist.get_rank()} %(message)s")
    box = [tempfile.mkdtemp(prefix="syr_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    exp = Experiment(args, box[0])
    verdict = exp.run()
    log.info("step %d verdict %d weights %.9f", exp.step, verdict,
             sum(float(p.detach().double().sum()) for p in exp.model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
