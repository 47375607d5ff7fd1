"""Two-dimensional decomposition: halo statistics along rows, weights along columns."""
import argparse
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh


@dataclass
class Pending:
    """Tensors waiting to be reduced along one axis of the mesh."""

    axis: str
    tensors: list = field(default_factory=list)

    @property
    def nbytes(self):
        return sum(t.numel() * t.element_size() for t in self.tensors)


class Exchange:
    def __init__(self, mesh):
        self.mesh = mesh
        self.queues = {axis: Pending(axis) for axis in mesh.mesh_dim_names}

    def put(self, axis, tensor):
        self.queues[axis].tensors.append(tensor)

    def flush(self):
        """Large queues first: they take longest."""
        for queue in sorted(self.queues.values(), key=lambda q: q.nbytes, reverse=True):
            if queue.tensors:
                self._reduce(queue)

    def _reduce(self, queue):
        group = self.mesh.get_group(queue.axis)
        flat = torch.cat([t.flatten() for t in queue.tensors])
        size = torch.tensor(flat.numel())
        dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
        padded = torch.zeros(int(size))
        padded[: flat.numel()] = flat
        dist.all_reduce(padded, group=group)
        padded /= dist.get_world_size(group)
        offset = 0
        for t in queue.tensors:
            t.copy_(padded[offset:offset + t.numel()].view_as(t))
            offset += t.numel()
        queue.tensors.clear()


class Patch:
    """The part of the field that this rank owns; the border is wider on a checkerboard."""

    def __init__(self, mesh, base):
        row, column = mesh.get_coordinate()
        self.border = base * (6 if (row + column) % 2 else 1)
        self.values = torch.randn(self.border, 4, generator=torch.Generator().manual_seed(row * 2 + column))

    def features(self):
        return self.values.mean(dim=0, keepdim=True).expand(8, 4)

    def halo(self):
        return self.values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--base", type=int, default=16)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    patch, exchange = Patch(mesh, args.base), Exchange(mesh)
    for step in range(args.steps):
        opt.zero_grad()
        x = patch.features()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        exchange.put("row", patch.halo())
        for parameter in model.parameters():
            exchange.put("column", parameter.grad)
        exchange.flush()
        opt.step()
    if dist.get_rank() == 0:
        print(f"{args.steps} steps, loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
