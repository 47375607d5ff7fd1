"""Hand-written data parallelism: gradients are averaged tensor by tensor."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=20, depth=3, classes=5):
        super().__init__()
        self.embed = nn.Linear(10, width)
        self.blocks = nn.ModuleList(Block(width, 24 + 8 * i) for i in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def pick(model, frozen_prefixes):
    """Names of what is trained: everything but the frozen parts."""
    names = {name for name, _ in model.named_parameters()}
    for prefix in frozen_prefixes:
        names -= {name for name in names if name.startswith(prefix)}
    return names


class Averager:
    def __init__(self, model, frozen):
        self.parameters = dict(model.named_parameters())
        self.names = sorted(pick(model, frozen))
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in self.names)

    def sync_weights(self):
        for parameter in self.parameters.values():
            dist.broadcast(parameter.data, src=0)

    def average(self):
        world = dist.get_world_size()
        for name in self.names:
            grad = self.parameters[name].grad
            if grad is None:
                grad = self.parameters[name].grad = torch.zeros_like(self.parameters[name])
            dist.all_reduce(grad)
            grad.div_(world)


def run(args):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Net()
    averager = Averager(model, args.freeze)
    averager.sync_weights()
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(args.steps):
        x = torch.randn(16, 10)
        y = (x[:, :5]).argmax(dim=1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        averager.average()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--freeze", nargs="*", default=["embed"])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    run(args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
