"""Two-stage pipeline, one forward and one backward in flight."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

WIDTH = 64


def make_stage(rank):
    torch.manual_seed(20 + rank)
    if rank == 0:
        return nn.Sequential(nn.Linear(16, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 5))


def micro_batches(step, count, rows):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(count * rows, 16, generator=gen)
    y = x[:, :5].argmax(1)
    return list(zip(x.split(rows), y.split(rows)))


class FirstStage:
    def __init__(self, module, rows):
        self.module, self.rows, self.saved = module, rows, []

    def forward(self, x):
        out = self.module(x)
        self.saved.append(out)
        return out.detach()

    def send_forward(self, out):
        dist.send(out, 1)

    def recv_backward(self):
        grad = torch.empty(self.rows, WIDTH)
        dist.recv(grad, 1)
        self.saved.pop(0).backward(grad)

    def run(self, batches):
        self.send_forward(self.forward(batches[0][0]))
        for x, _ in batches[1:]:
            out = self.forward(x)
            self.send_forward(out)
            self.recv_backward()
        self.recv_backward()


class LastStage:
    def __init__(self, module, rows):
        self.module, self.rows = module, rows
        self.loss_fn = nn.CrossEntropyLoss()

    def recv_forward(self):
        x = torch.empty(self.rows, WIDTH)
        dist.recv(x, 0)
        return x.requires_grad_()

    def run(self, batches):
        losses = []
        for _, y in batches:
            x = self.recv_forward()
            loss = self.loss_fn(self.module(x), y) / len(batches)
            loss.backward()
            losses.append(loss.item())
            dist.send(x.grad, 0)
        return sum(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module = make_stage(rank)
    stage = (FirstStage if rank == 0 else LastStage)(module, args.rows)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    for step in range(args.steps):
        time.sleep(0.3)
        loss = stage.run(micro_batches(step, args.micro, args.rows))
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1 and step % 6 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
