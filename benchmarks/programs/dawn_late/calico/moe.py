import torch
import torch.nn as nn
import torch.nn.functional as F


class BalancedMoE(nn.Module):
    """Top-k mixture of experts, balanced without an auxiliary loss: a per-expert bias
    enters the selection only and follows the sign of the load error."""

    def __init__(self, dim, hidden, n_experts, top_k=2, rate=0.01):
        super().__init__()
        self.top_k, self.rate = top_k, rate
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.up = nn.Parameter(torch.randn(n_experts, dim, hidden) / dim ** 0.5)
        self.down = nn.Parameter(torch.randn(n_experts, hidden, dim) / hidden ** 0.5)
        self.register_buffer("expert_bias", torch.zeros(n_experts))

    def forward(self, x):
        score = torch.sigmoid(self.router(x))
        pick = (score.detach() + self.expert_bias).topk(self.top_k, dim=-1).indices
        kept = score.gather(1, pick)
        gate = torch.zeros_like(score).scatter(1, pick, kept / kept.sum(-1, keepdim=True))
        h = F.silu(torch.einsum("bd,edh->beh", x, self.up))
        y = torch.einsum("beh,ehd,be->bd", h, self.down, gate)
        if self.training:
            with torch.no_grad():
                load = torch.bincount(pick.flatten(), minlength=self.expert_bias.numel()).float()
                self.expert_bias.add_(torch.sign(load.mean() - load), alpha=self.rate)
        return x + y
