import argparse

import torch
import torch.distributed as dist
from torch import nn

from averager import TeacherAverager


class Student(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        return self.net(x)


class Digits:
    def __init__(self, rank):
        self.proto = torch.randn(10, 1, 7, 7, generator=torch.Generator().manual_seed(0))
        self.gen = torch.Generator().manual_seed(80 + rank)

    def batch(self, n):
        y = torch.randint(0, 10, (n,), generator=self.gen)
        x = nn.functional.interpolate(self.proto[y], 28) + 5.0 * torch.randn(n, 1, 28, 28, generator=self.gen)
        return x, y


@torch.no_grad()
def average_gradients(model, world):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


@torch.no_grad()
def accuracy(model, vector, data):
    nn.utils.vector_to_parameters(vector, model.parameters())
    x, y = data.batch(1024)
    hits = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    return hits[0].item() / hits[1].item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=180)
    p.add_argument("--batch-size", type=int, default=96)
    p.add_argument("--submit-every", type=int, default=6)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Student()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Digits(rank)
    averager = TeacherAverager(model)
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch_size)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        average_gradients(model, world)
        opt.step()
        if step % args.submit_every == 0:
            averager.submit(model)
        if rank == 0 and step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f} merged {averager.merged}", flush=True)
    teacher = averager.finish()
    score = accuracy(model, teacher, data)
    if rank == 0:
        print(f"teacher accuracy {score:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
