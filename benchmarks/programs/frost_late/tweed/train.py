"""Hierarchical data parallelism: every step inside the node, now and then across nodes."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def average(tensors, group):
    n = dist.get_world_size(group)
    for t in tensors:
        dist.all_reduce(t, group=group)
        t.div_(n)


class Plan:
    def __init__(self, switch_at):
        self.switch_at = switch_at
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
        self.inner = self.mesh.get_group("local")
        self.outer = self.mesh.get_group("node")
        self.late = None

    def grads_group(self, step):
        if step < self.switch_at:
            return self.inner
        if self.late is None:
            self.late, _ = dist.new_subgroups(group_size=4)
        return self.late


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--sync-every", type=int, default=4)
    ap.add_argument("--switch-at", type=int, default=16)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plan = Plan(a.switch_at)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(a.steps):
        x = torch.randn(16, 5, generator=gen)
        loss = nn.functional.mse_loss(net(x), torch.sin(x.sum(1, keepdim=True)))
        opt.zero_grad()
        loss.backward()
        average([p.grad for p in net.parameters()], plan.grads_group(step))
        opt.step()
        if step < a.switch_at and (step + 1) % a.sync_every == 0:
            average([p.data for p in net.parameters()], plan.outer)
    w = sum(p.double().sum().item() for p in net.parameters())
    print(f"rank {rank} loss {loss.item():.4f} weights {w:.8f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
