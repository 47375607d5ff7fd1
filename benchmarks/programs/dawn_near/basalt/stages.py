"""Pipeline stages of a small language model with shared input and output token tables."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.n2(x))


class Stage(nn.Module):
    def __init__(self, rank, world, vocab, dim, length, depth):
        super().__init__()
        self.first, self.last = rank == 0, rank == world - 1
        if self.first or self.last:
            self.table = nn.Parameter(torch.empty(vocab, dim).normal_(std=0.05))
        if self.first:
            self.pos = nn.Parameter(torch.zeros(length, dim))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        if self.last:
            self.norm = nn.LayerNorm(dim)

    def forward(self, x, target=None):
        if self.first:
            x = F.embedding(x, self.table) + self.pos[: x.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        if self.last:
            logits = self.norm(x) @ self.table.t()
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())
        return x


class Pipeline:
    """All forward passes of the micro-batches, then all backward passes."""

    def __init__(self, stage, shape):
        self.stage, self.shape = stage, shape
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.tied = dist.new_group([0, self.world - 1])
        self.share_table()

    def holds_table(self):
        return self.stage.first or self.stage.last

    def share_table(self):
        """Both ends start from the token table of the first stage."""
        if self.holds_table():
            dist.broadcast(self.stage.table.data, src=0, group=self.tied)

    def run(self, tokens, targets):
        n = len(tokens)
        inputs, outputs, losses = [], [], []
        for i in range(n):
            if self.stage.first:
                x = tokens[i]
            else:
                x = torch.empty(self.shape)
                dist.recv(x, self.rank - 1)
                x.requires_grad_(True)
            y = self.stage(x, targets[i] if self.stage.last else None)
            if self.stage.last:
                losses.append(y)
            else:
                dist.send(y.detach(), self.rank + 1)
            inputs.append(x)
            outputs.append(y)
        for i in range(n):
            if self.stage.last:
                (losses[i] / n).backward()
            else:
                grad = torch.empty(self.shape)
                dist.recv(grad, self.rank + 1)
                outputs[i].backward(grad)
            if not self.stage.first:
                dist.send(inputs[i].grad, self.rank - 1)
        if self.holds_table():
            dist.all_reduce(self.stage.table.grad, group=self.tied)
        return torch.stack(losses).mean().item() if losses else None
