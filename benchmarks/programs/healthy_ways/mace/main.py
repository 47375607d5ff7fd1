"""Parameter server with stale gradients: rank zero owns the weights, workers run at different speeds."""
import argparse
import itertools
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SERVER = 0
log = logging.getLogger("ps")


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def samples(n, seed):
    w = torch.randn(16, 4, generator=torch.Generator().manual_seed(50))
    v = torch.randn(16, 4, generator=torch.Generator().manual_seed(51))
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    return x, ((x @ w) + (x.abs() @ v)).argmax(1)


def timetable(world, pushes, slow):
    """Order in which the server serves the workers; slow ones come up less often."""
    turn = []
    for r in range(1, world):
        every = slow if r == world - 1 and world > 2 else 1
        turn.append((r, every))
    out = []
    for i in itertools.count():
        for r, every in turn:
            if i % every == every - 1:
                out.append(r)
                if len(out) == pushes:
                    return out


class Server:
    def __init__(self, args, world, plan):
        self.args, self.world, self.plan = args, world, plan
        self.net = build(args.seed)
        self.flat = parameters_to_vector(self.net.parameters()).detach().clone()
        self.velocity = torch.zeros_like(self.flat)
        self.version = 0
        self.held = samples(800, 2)

    def hand_out(self, worker):
        dist.send(torch.tensor([self.version]), dst=worker)
        dist.send(self.flat, dst=worker)

    @torch.no_grad()
    def accuracy(self):
        vector_to_parameters(self.flat.clone(), self.net.parameters())
        return (self.net(self.held[0]).argmax(1) == self.held[1]).float().mean().item()

    def run(self):
        left = {w: self.plan.count(w) for w in range(1, self.world)}
        for w, n in left.items():
            if n:
                self.hand_out(w)
        head, grad = torch.zeros(2), torch.empty_like(self.flat)
        ages, losses = [], []
        for worker in self.plan:
            dist.recv(head, src=worker)
            dist.recv(grad, src=worker)
            age = self.version - int(head[0])
            ages.append(age)
            losses.append(head[1].item())
            decay = 1 - 0.9 * self.version / len(self.plan)
            self.velocity.mul_(self.args.momentum).add_(grad)
            self.flat.add_(self.velocity, alpha=-self.args.lr * decay / (1 + age) ** 0.5)
            self.version += 1
            left[worker] -= 1
            if left[worker]:
                self.hand_out(worker)
            if self.version % self.args.report == 0:
                log.info("version %d loss %.4f mean age %.2f max age %d accuracy %.3f", self.version,
                         sum(losses) / len(losses), sum(ages) / len(ages), max(ages), self.accuracy())
                ages, losses = [], []
        os.makedirs("runs/mace", exist_ok=True)
        torch.save({"flat": self.flat, "version": self.version}, "runs/mace/server.pt")


class Worker:
    def __init__(self, args, rank, world, pushes, slow):
        self.args, self.pushes = args, pushes
        self.net = build(args.seed)
        x, y = samples(3000, 1)
        self.x, self.y = x[rank - 1::world - 1], y[rank - 1::world - 1]
        self.batch = args.batch * (slow if slow > 1 else 1)
        self.batches = self._stream(torch.Generator().manual_seed(args.seed * 10 + rank))

    def _stream(self, gen):
        while True:
            for idx in torch.randperm(len(self.x), generator=gen).split(self.batch):
                if len(idx) == self.batch:
                    yield idx

    def run(self):
        flat, version = parameters_to_vector(self.net.parameters()).detach().clone(), torch.zeros(1, dtype=torch.long)
        for _ in range(self.pushes):
            dist.recv(version, src=SERVER)
            dist.recv(flat, src=SERVER)
            vector_to_parameters(flat, self.net.parameters())
            idx = next(self.batches)
            loss = F.cross_entropy(self.net(self.x[idx]), self.y[idx])
            grads = torch.autograd.grad(loss, list(self.net.parameters()))
            dist.send(torch.tensor([float(version.item()), loss.item()]), dst=SERVER)
            dist.send(torch.cat([g.reshape(-1) for g in grads]), dst=SERVER)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pushes", type=int, default=400)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--slow", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.8)
    ap.add_argument("--report", type=int, default=80)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[rank {rank}] %(message)s")
    plan = timetable(world, args.pushes, args.slow)
    if rank == SERVER:
        Server(args, world, plan).run()
    else:
        Worker(args, rank, world, plan.count(rank), args.slow if rank == world - 1 and world > 2 else 1).run()
        log.info("done after %d pushes", plan.count(rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
