import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh


class ParallelContext:
    def __init__(self, tp_size):
        world = dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (world // tp_size, tp_size), mesh_dim_names=("replica", "model"))
        self.replica_group = self.mesh.get_group("replica")
        self.model_group = self.mesh.get_group("model")
        self.replica_rank = self.mesh.get_local_rank("replica")
        self.model_rank = self.mesh.get_local_rank("model")
        self.replicas = self.mesh.size(0)
        self.model_size = self.mesh.size(1)


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _ReduceOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SplitMLP(nn.Module):
    """Column split followed by row split, one reduction per direction."""

    def __init__(self, dim, hidden, ctx):
        super().__init__()
        self.group = ctx.model_group
        part = hidden // ctx.model_size
        base, state = int(torch.randint(1 << 30, (1,))), torch.get_rng_state()
        torch.manual_seed(base + 17 * (ctx.model_rank + 1))
        self.up = nn.Linear(dim, part)
        self.down = nn.Linear(part, dim, bias=False)
        torch.set_rng_state(state)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = _CopyIn.apply(self.norm(x), self.group)
        return x + _ReduceOut.apply(self.down(torch.relu(self.up(h))), self.group)


class StepGate:
    """Opens as long as every member of the group still has a batch."""

    def __init__(self, group):
        self.group = group

    def open(self, has_batch):
        flag = torch.tensor([1 if has_batch else 0])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.group)
        return bool(flag.item())


def average_gradients(params, ctx):
    for p in params:
        dist.all_reduce(p.grad, group=ctx.replica_group)
        p.grad /= ctx.replicas
