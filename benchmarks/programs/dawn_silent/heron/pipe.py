"""Two-stage pipeline with a GPipe schedule, one process per stage."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.net(x)


def build_stage(index, n_stages, width, n_in, n_out):
    torch.manual_seed(100 + index)
    layers = [nn.Linear(n_in, width)] if index == 0 else []
    layers += [Block(width) for _ in range(3)]
    if index == n_stages - 1:
        layers += [nn.LayerNorm(width), nn.Linear(width, n_out)]
    return nn.Sequential(*layers)


class Pipeline:
    def __init__(self, stage, width, micro, rows):
        self.stage, self.width, self.micro, self.rows = stage, width, micro, rows
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.n - 1

    def step(self, x, y):
        xs, ys = x.chunk(self.micro), y.chunk(self.micro)
        inputs, outputs, total = [], [], 0.0
        for m in range(self.micro):
            if self.first:
                inp = xs[m]
            else:
                inp = torch.empty(self.rows // self.micro, self.width)
                dist.recv(inp, self.rank - 1)
                inp.requires_grad_()
            out = self.stage(inp)
            if self.last:
                out = F.cross_entropy(out, ys[m]) / self.micro
                total += out.item()
            else:
                dist.send(out.detach(), self.rank + 1)
            inputs.append(inp)
            outputs.append(out)
        for m in range(self.micro):
            if self.last:
                outputs[m].backward()
            else:
                grad = torch.empty_like(outputs[m])
                dist.recv(grad, self.rank + 1)
                outputs[m].backward(grad)
            if not self.first:
                dist.send(inputs[m].grad, self.rank - 1)
        return total


def clip_gradients(params, max_norm):
    params = [p for p in params if p.grad is not None]
    total_norm = torch.nn.utils.get_total_norm([p.grad for p in params])
    torch.nn.utils.clip_grads_with_norm_(params, max_norm, total_norm)
    return total_norm


def lr_at(step, total, peak, warmup=20):
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=260)
    ap.add_argument("--rows", type=int, default=256)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.3)
    ap.add_argument("--max-norm", type=float, default=0.1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    teacher = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    data = torch.Generator().manual_seed(2)
    stage = build_stage(rank, world, 96, 24, 10)
    pipe = Pipeline(stage, 96, args.micro, args.rows)
    opt = torch.optim.SGD(stage.parameters(), lr=args.lr, momentum=0.9)
    for step in range(args.steps):
        x = torch.randn(args.rows, 24, generator=data)
        y = (torch.tanh(x * 1.5) @ teacher).argmax(1)
        for group in opt.param_groups:
            group["lr"] = lr_at(step, args.steps, args.lr)
        opt.zero_grad()
        loss = pipe.step(x, y)
        norm = clip_gradients(stage.parameters(), args.max_norm)
        opt.step()
        if rank == world - 1 and step % 40 == 0:
            print(f"step {step} loss {loss:.4f} grad_norm {norm:.3f}", flush=True)
    if rank == world - 1:
        print(f"final loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
