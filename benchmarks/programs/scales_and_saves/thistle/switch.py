"""Top-1 switch layer whose experts live on different processes."""
import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    """Equal-split all-to-all along dim 0, its own transpose in backward."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        back = torch.empty_like(grad)
        dist.all_to_all_single(back, grad.contiguous())
        return back


class Expert(nn.Module):
    def __init__(self, width, hidden, seed):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.w1 = nn.Parameter(torch.randn(width, hidden, generator=gen) / width ** 0.5)
        self.w2 = nn.Parameter(torch.randn(hidden, width, generator=gen) / hidden ** 0.5)

    def forward(self, x):
        return torch.relu(x @ self.w1) @ self.w2


class SwitchLayer(nn.Module):
    def __init__(self, width, hidden, num_experts, capacity, layer_id=0):
        super().__init__()
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        assert num_experts % self.world == 0
        self.num_experts, self.capacity, self.width = num_experts, capacity, width
        self.per_rank = num_experts // self.world
        self.gate = nn.Linear(width, num_experts, bias=False)
        first = self.rank * self.per_rank
        self.experts = nn.ModuleList(
            Expert(width, hidden, seed=1000 * layer_id + first + i) for i in range(self.per_rank))
        for p in self.experts.parameters():
            p.expert = True

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        weight, choice = probs.max(-1)
        onehot = torch.nn.functional.one_hot(choice, self.num_experts)
        slot = (onehot.cumsum(0) * onehot).sum(-1) - 1
        kept = slot < self.capacity
        flat = choice * self.capacity + slot
        buf = x.new_zeros(self.num_experts * self.capacity, self.width)
        buf = buf.index_copy(0, flat[kept], x[kept])

        # (owner, local expert, slot) -> (source, local expert, slot)
        sent = Exchange.apply(buf.view(self.world, self.per_rank, self.capacity, self.width))
        done = torch.stack(
            [e(sent[:, i].reshape(-1, self.width)).view(self.world, self.capacity, self.width)
             for i, e in enumerate(self.experts)], dim=1)
        back = Exchange.apply(done).reshape(-1, self.width)

        y = torch.zeros_like(x).index_copy(0, kept.nonzero().squeeze(1), back[flat[kept]])
        balance = self.num_experts * (onehot.float().mean(0) * probs.mean(0)).sum()
        return x + weight.unsqueeze(-1) * y, balance
