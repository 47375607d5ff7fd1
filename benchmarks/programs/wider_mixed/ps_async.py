"""Downpour style: rank 0 keeps the weights, the others pull, compute and push whenever they are ready."""
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PULL, PUSH, DONE = 0, 1, 2


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))


class Server:
    def __init__(self, model, workers, lr=0.05):
        self.flat = parameters_to_vector(model.parameters()).detach()
        self.lr, self.alive, self.updates = lr, workers, 0
        self.per_worker = {}

    def serve(self):
        header = torch.zeros(2, dtype=torch.long)
        grad = torch.zeros_like(self.flat)
        while self.alive:
            src = dist.recv(header)
            kind = int(header[0])
            if kind == PULL:
                dist.send(self.flat, dst=src)
            elif kind == PUSH:
                dist.recv(grad, src=src, tag=1)
                self.flat.add_(grad, alpha=-self.lr)
                self.updates += 1
                self.per_worker[src] = self.per_worker.get(src, 0) + 1
            else:
                self.alive -= 1
        print("server: updates", self.updates, "by worker", self.per_worker, flush=True)


class Worker:
    def __init__(self, rank, budget):
        self.rank, self.budget = rank, budget
        self.model = build()
        self.flat = parameters_to_vector(self.model.parameters()).detach().clone()
        self.gen = torch.Generator().manual_seed(100 + rank)

    def batch(self):
        x = torch.randn(16, 10, generator=self.gen)
        return x, (x[:, 0] * x[:, 1] > 0).long()

    def loop(self):
        end = time.monotonic() + self.budget
        n = 0
        while time.monotonic() < end:
            if n % 3 == 0:
                dist.send(torch.tensor([PULL, n]), dst=0)
                dist.recv(self.flat, src=0)
                vector_to_parameters(self.flat, self.model.parameters())
            x, y = self.batch()
            loss = nn.functional.cross_entropy(self.model(x), y)
            grads = torch.autograd.grad(loss, list(self.model.parameters()))
            dist.send(torch.tensor([PUSH, n]), dst=0)
            dist.send(torch.cat([g.flatten() for g in grads]), dst=0, tag=1)
            time.sleep(random.Random(self.rank * 997 + n).uniform(0.005, 0.02 * self.rank))
            n += 1
        dist.send(torch.tensor([DONE, n]), dst=0)
        print(f"worker {self.rank}: {n} gradients, last loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        Server(build(), world - 1).serve()
    else:
        Worker(rank, budget=3.0 + 1.5 * rank).loop()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
