"""Local SGD over a 2x2 mesh: gradients are averaged inside a node at every step, models between nodes
once per round. Nodes may be of different speed and then do a different number of inner steps per round."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from outer import OuterOptimizer

log = logging.getLogger("localsgd")


class Net(nn.Module):
    def __init__(self, dim=128, hidden=320, classes=10):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


def average_grads(model, group):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    off = 0
    for p in model.parameters():
        p.grad.copy_(flat[off:off + p.numel()].view_as(p))
        off += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--inner-steps", type=int, nargs="+", default=[24, 9], help="per node")
    ap.add_argument("--step-time", type=float, nargs="+", default=[0.02, 0.4], help="data loading time per node")
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("node", "local"))
    node = mesh.get_local_rank("node")
    local, across = mesh.get_group("local"), mesh.get_group("node")

    torch.manual_seed(0)
    model = Net()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = OuterOptimizer(model, across, lr=0.7, momentum=0.6)
    centers = torch.randn(10, 128, generator=torch.Generator().manual_seed(2))
    g = torch.Generator().manual_seed(300 + rank)
    for rnd in range(args.rounds):
        for _ in range(args.inner_steps[node]):
            time.sleep(args.step_time[node])
            y = torch.randint(0, 10, (args.batch_size,), generator=g)
            x = centers[y] + 2.2 * torch.randn(len(y), 128, generator=g)
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad()
            loss.backward()
            average_grads(model, local)
            inner.step()
        waited = outer.step()
        if mesh.get_local_rank("local") == 0:
            log.info("round %d node %d loss %.4f waited %.1f s", rnd, node, loss.item(), waited)
    if rank == 0:
        out = args.out or tempfile.mkdtemp(prefix="lsgd_")
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
