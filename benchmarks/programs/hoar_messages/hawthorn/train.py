"""Elastic averaging with a centre process. Workers have different amounts of data and leave when they are through."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

PUSH, DONE = 0.0, 1.0


def vec(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


class Centre:
    def __init__(self, model, world, rho):
        self.model, self.rho = model, rho
        self.alive = set(range(1, world))
        self.log = []

    def serve(self):
        centre = vec(self.model).clone()
        msg = torch.empty(centre.numel() + 1)
        while self.alive:
            src = dist.recv(msg)
            if msg[0] == DONE:
                self.alive.discard(src)
                self.log.append(src)
                continue
            delta = self.rho * (msg[1:] - centre)
            centre += delta
            dist.send(delta, src)
        nn.utils.vector_to_parameters(centre, self.model.parameters())
        return self.log


class Worker:
    def __init__(self, model, rank, lr, period):
        self.model, self.rank, self.period = model, rank, period
        self.opt = torch.optim.SGD(model.parameters(), lr=lr)

    def talk(self, kind):
        v = vec(self.model)
        dist.send(torch.cat([torch.tensor([kind]), v]), 0)
        if kind == DONE:
            return
        delta = torch.empty_like(v)
        dist.recv(delta, 0)
        nn.utils.vector_to_parameters(v - delta, self.model.parameters())

    def run(self, n_steps, delay):
        g = torch.Generator().manual_seed(self.rank)
        for i in range(1, n_steps + 1):
            x = torch.randn(32, 8, generator=g)
            loss = nn.functional.mse_loss(self.model(x), x.norm(dim=1, keepdim=True))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            time.sleep(delay)
            if i % self.period == 0:
                self.talk(PUSH)
        self.talk(DONE)
        print(f"worker {self.rank} leaves after {n_steps} steps, loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, nargs="+", default=[30, 120, 75])
    ap.add_argument("--period", type=int, default=4)
    ap.add_argument("--rho", type=float, default=0.3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    if rank == 0:
        order = Centre(model, world, args.rho).serve()
        print("order of leaving:", order, flush=True)
    else:
        Worker(model, rank, 0.02, args.period + rank).run(args.steps[rank - 1], 0.01 * rank)
    flat = vec(model).clone()
    dist.broadcast(flat, 0)
    print(f"[{rank}] final norm {flat.norm():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
