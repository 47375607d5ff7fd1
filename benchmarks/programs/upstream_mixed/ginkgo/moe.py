import torch
from torch import nn
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


class MoE(nn.Module):
    """Top-1 mixture of experts; the experts' hidden dimension is split over the mesh."""

    def __init__(self, mesh, width, hidden, experts):
        super().__init__()
        self.mesh = mesh
        self.router = nn.Parameter(distribute_tensor(torch.randn(experts, width) * width ** -0.5, mesh, [Replicate()]))
        self.w1 = nn.Parameter(distribute_tensor(torch.randn(experts, width, hidden) * width ** -0.5, mesh, [Shard(2)]))
        self.w2 = nn.Parameter(distribute_tensor(torch.randn(experts, hidden, width) * hidden ** -0.5, mesh, [Shard(1)]))

    def forward(self, x):
        h = x.to_local(grad_placements=[Partial()])
        weight = self.router.to_local()
        probs = F.softmax(h @ weight.t(), dim=-1)
        score, choice = probs.max(dim=-1)
        w1, w2 = self.w1.to_local(), self.w2.to_local()
        out = torch.zeros_like(h)
        for e in range(weight.shape[0]):
            index = (choice == e).nonzero().squeeze(-1)
            tokens = h[index] * score[index].unsqueeze(-1)
            out = out.index_add(0, index, F.gelu(tokens @ w1[e]) @ w2[e])
        out = DTensor.from_local(out, self.mesh, [Partial()], run_check=False)
        return out.redistribute(placements=[Replicate()])
