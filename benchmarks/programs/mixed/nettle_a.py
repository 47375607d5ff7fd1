import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class First(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Last(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, x):
        return self.net(x)


def average(module, group):
    grads = [p.grad for p in module.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    stage_index = mesh["pp"].get_local_rank()
    replica = mesh["dp"].get_local_rank()
    torch.manual_seed(10 + stage_index)
    part = First(64) if stage_index == 0 else Last(64)
    stage = PipelineStage(part, stage_index, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=args.micro, loss_fn=nn.functional.cross_entropy)
    opt = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(500 + replica)
    teacher = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    for step in range(args.steps):
        x = torch.randn(args.batch, 20, generator=gen)
        y = (x @ teacher).argmax(-1)
        opt.zero_grad()
        losses = []
        if stage_index == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        average(part, mesh["dp"].get_group())
        opt.step()
        if stage_index == 1 and replica == 0 and step % 20 == 19:
            print(f"step {step + 1} loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
