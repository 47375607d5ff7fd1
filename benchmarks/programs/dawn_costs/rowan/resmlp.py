"""Very deep residual MLP with hand-written data parallelism."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class ResidualUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        return x + self.gain * self.outer(torch.relu(self.inner(self.norm(x))))


def build(depth, width, inputs, outputs):
    torch.manual_seed(2024)
    layers = [nn.Linear(inputs, width)] + [ResidualUnit(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, outputs))


def share_parameters(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_gradients(model):
    size = float(dist.get_world_size())
    grads = [param.grad for param in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g)).div_(size)


class Spirals:
    """Points on four noisy spiral arms, lifted to a higher dimension."""

    def __init__(self, rank, dim):
        self.gen = torch.Generator().manual_seed(31 + rank)
        self.lift = torch.randn(2, dim, generator=torch.Generator().manual_seed(1))

    def sample(self, n):
        arm = torch.randint(4, (n,), generator=self.gen)
        radius = torch.rand(n, generator=self.gen) * 2 + 0.2
        angle = radius * 1.5 + arm * (torch.pi / 2) + 0.08 * torch.randn(n, generator=self.gen)
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        return points @ self.lift, arm


def main(depth=20, width=32, dim=12, batch=64, steps=140):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(depth, width, dim, 4)
    share_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    data = Spirals(rank, dim)

    started = time.perf_counter()
    for step in range(1, steps + 1):
        x, y = data.sample(batch)
        out = model(x)
        loss = loss_fn(out, y)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 15 == 0 and rank == 0:
            took = (time.perf_counter() - started) / 15
            acc = (out.argmax(1) == y).float().mean()
            print(f"{step:4d}  loss {loss.item():.4f}  acc {acc:.3f}  {took * 1e3:.0f} ms", flush=True)
            started = time.perf_counter()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
