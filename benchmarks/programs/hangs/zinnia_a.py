"""Collects per-layer activation statistics across pipeline ranks while training."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Probe:
    """Forward hooks on the layers that a rank was asked to watch."""

    def __init__(self):
        self.values, self.handles = {}, []

    def attach(self, name, module):
        self.handles.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name):
        def record(module, inputs, output):
            if output.detach().abs().max() > 3.0:
                self.values[name] = float(output.detach().abs().max())
        return record

    def drain(self):
        values, self.values = self.values, {}
        return values


class Collector:
    def __init__(self, probe, every):
        self.probe, self.every = probe, every
        self.history = []

    def gather(self, values):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, values)
        merged = {}
        for part in parts:
            for name, value in part.items():
                merged[name] = max(value, merged.get(name, 0.0))
        return merged

    def after_step(self, step):
        if step % self.every == 0:
            self.history.append(self.gather(self.probe.drain()))


class Tower(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def average(model):
    handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for handle in handles:
        handle.wait()
    for p in model.parameters():
        p.grad.div_(dist.get_world_size())


def inputs(rank, step):
    gen = torch.Generator().manual_seed(step * 3 + rank)
    scale = 0.3 if rank == 2 and step > 11 else 2.0
    return scale * torch.randn(16, 24, generator=gen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    model = Tower()
    probe = Probe()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            probe.attach(name, module)
    collector = Collector(probe, args.every)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        opt.zero_grad()
        loss = model(inputs(rank, step)).square().mean()
        loss.backward()
        average(model)
        opt.step()
        collector.after_step(step)
    if rank == 0:
        print(f"{len(collector.history)} reports, last {collector.history[-1]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
