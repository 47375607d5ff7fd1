"""Training on all ranks but the last, which evaluates published weights in the meantime."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def make_net(width=64, hidden=384, out=16):
    return nn.Sequential(
        nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, out)
    )


def teacher(width=64, out=16):
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(width, 96, generator=g) / 8, torch.randn(96, out, generator=g) / 6
    return lambda x: torch.tanh(x @ a) @ b


class Publisher:
    """Hands the weights from trainer 0 to the evaluator; ``None`` stands for the end of the run."""

    def __init__(self, net, source, sink):
        self.net, self.source, self.sink = net, source, sink
        self.size = sum(p.numel() for p in net.parameters())

    def publish(self, step):
        flat = torch.cat([torch.tensor([float(step)])] + [p.detach().flatten() for p in self.net.parameters()])
        dist.send(flat, self.sink)

    def receive(self):
        flat = torch.empty(self.size + 1)
        dist.recv(flat, self.source)
        step, at = int(flat[0]), 1
        if step < 0:
            return None
        for p in self.net.parameters():
            p.data.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        return step


def train(args, group, publisher, net, target):
    model = DDP(net, process_group=group)
    rank = dist.get_rank(group)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank + 1)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 64, generator=gen)
        loss = F.mse_loss(model(x), target(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.publish_every == 0 and rank == 0:
            publisher.publish(step)
    if rank == 0:
        publisher.publish(-1)


@torch.no_grad()
def evaluate(publisher, net, target):
    x = torch.randn(6000, 64, generator=torch.Generator().manual_seed(999))
    y = target(x)
    best = float("inf")
    while True:
        t0 = time.time()
        step = publisher.receive()
        if step is None:
            break
        waited = time.time() - t0
        loss = sum(F.mse_loss(net(a), b, reduction="sum") for a, b in zip(x.split(500), y.split(500))).item() / y.numel()
        best = min(best, loss)
        print(f"[eval] step {step} loss {loss:.5f} best {best:.5f} (waited {waited:.1f}s)", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--publish-every", type=int, default=50)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = dist.new_group(list(range(world - 1)))
    torch.manual_seed(0)
    net, target = make_net(), teacher()
    publisher = Publisher(net, source=0, sink=world - 1)
    if rank < world - 1:
        train(args, trainers, publisher, net, target)
    else:
        evaluate(publisher, net, target)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
