"""Parameter server over point-to-point messages from any source."""
import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn

SERVER, GRAD, WEIGHTS = 0, 1, 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 1))


def flatten(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def scatter_into(parameters, flat, as_grad=False):
    offset = 0
    for p in parameters:
        piece = flat[offset:offset + p.numel()].view_as(p)
        if as_grad:
            p.grad = piece.clone()
        else:
            p.data.copy_(piece)
        offset += p.numel()


class Server:
    def __init__(self, workers, total):
        self.model = network()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.left, self.workers = total, workers
        self.served = {w: 0 for w in workers}

    def run(self):
        active = set(self.workers)
        size = flatten(self.model.parameters()).numel()
        while active:
            message = torch.empty(size + 1)
            worker = dist.recv(message, tag=GRAD)
            if message[0] > 0:
                scatter_into(list(self.model.parameters()), message[1:], as_grad=True)
                self.opt.step()
                self.served[worker] += 1
                self.left -= 1
            reply = torch.cat([torch.tensor([float(self.left > 0)]), flatten(self.model.parameters())])
            dist.send(reply, dst=worker, tag=WEIGHTS)
            if self.left <= 0:
                active.discard(worker)


class Worker:
    def __init__(self, rank, pace):
        self.rank, self.model, self.pace = rank, network(), pace
        self.rng = random.Random(rank)

    def run(self):
        parameters = list(self.model.parameters())
        first, step, going = True, 0, True
        while going:
            x = torch.randn(16, 7, generator=torch.Generator().manual_seed(100 * self.rank + step))
            self.model.zero_grad()
            (self.model(x).squeeze(1) - x.mean(dim=1)).square().mean().backward()
            time.sleep(self.rng.random() * self.pace * self.rank)
            head = torch.tensor([0.0 if first else 1.0])
            dist.send(torch.cat([head, flatten(p.grad for p in parameters)]), dst=SERVER, tag=GRAD)
            reply = torch.empty(flatten(parameters).numel() + 1)
            dist.recv(reply, src=SERVER, tag=WEIGHTS)
            scatter_into(parameters, reply[1:])
            going, first, step = bool(reply[0] > 0), False, step + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=90)
    parser.add_argument("--pace", type=float, default=0.03)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == SERVER:
        server = Server(range(1, world), args.updates)
        server.run()
        print(f"updates per worker {server.served}", flush=True)
    else:
        Worker(rank, args.pace).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
