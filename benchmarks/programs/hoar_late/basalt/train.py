"""Asynchronous SGD: rank 0 keeps the weights, everyone else computes gradients."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

GRAD, DONE = 1.0, 2.0


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


class Master:
    def __init__(self, lr):
        self.model = make_model()
        self.flat = parameters_to_vector(self.model.parameters()).detach()
        self.lr = lr

    def loop(self):
        message = torch.zeros(self.flat.numel() + 1)
        finished, updates = 0, 0
        while finished < dist.get_world_size():
            worker = dist.recv(message)
            if message[0] == DONE:
                finished += 1
                print(f"worker {worker} has finished ({updates} updates so far)", flush=True)
                continue
            self.flat -= self.lr * message[1:]
            updates += 1
            dist.send(self.flat, worker)
        return updates


class Worker:
    def __init__(self, rank, steps):
        self.model = make_model()
        self.rank = rank
        self.steps = steps
        self.gen = torch.Generator().manual_seed(rank)

    def batch(self):
        x = torch.randn(32, 10, generator=self.gen)
        return x, x[:, :3].sum(1, keepdim=True)

    def loop(self):
        n = sum(p.numel() for p in self.model.parameters())
        fresh = torch.empty(n)
        for step in range(self.steps):
            x, y = self.batch()
            loss = nn.functional.mse_loss(self.model(x), y)
            grads = torch.autograd.grad(loss, list(self.model.parameters()))
            payload = torch.cat([torch.tensor([GRAD])] + [g.reshape(-1) for g in grads])
            dist.send(payload, 0)
            dist.recv(fresh, 0)
            vector_to_parameters(fresh, self.model.parameters())
            if step % 20 == 0:
                print(f"[{self.rank}] step {step} loss {loss.item():.4f}", flush=True)
            time.sleep(0.01 * self.rank)
        bye = torch.zeros(n + 1)
        bye[0] = DONE
        dist.send(bye, 0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        node = Master(args.lr)
        node.loop()
        weights = node.flat
    else:
        node = Worker(rank, args.steps + 5 * rank)
        node.loop()
        weights = parameters_to_vector(node.model.parameters()).detach()
    dist.broadcast(weights, src=0)
    vector_to_parameters(weights, node.model.parameters())
    print(f"rank {rank} final weight norm {weights.norm():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
