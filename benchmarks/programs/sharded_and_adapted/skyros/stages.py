import torch
import torch.distributed as dist
import torch.nn as nn


class ResidualMLP(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.fc2(torch.relu(self.fc1(self.norm(x)))))


def build_stage(index, stages, features, dim, blocks, classes, dropout):
    """Only the layers of this stage are created; seeds differ because the layers differ."""
    parts = []
    if index == 0:
        parts.append(nn.Linear(features, dim))
    parts += [ResidualMLP(dim, dropout) for _ in range(blocks)]
    if index == stages - 1:
        parts += [nn.LayerNorm(dim), nn.Linear(dim, classes)]
    return nn.Sequential(*parts)


class GPipe:
    """All micro-batches forward, then all backward in reverse order."""

    def __init__(self, stage, index, stages, dim, criterion):
        self.stage, self.index, self.stages = stage, index, stages
        self.dim, self.criterion = dim, criterion

    @property
    def first(self):
        return self.index == 0

    @property
    def last(self):
        return self.index == self.stages - 1

    def _receive(self, rows, source):
        buffer = torch.empty(rows, self.dim)
        dist.recv(buffer, src=source)
        return buffer

    def step(self, micro_x, micro_y):
        count = len(micro_x)
        stash, total = [], torch.zeros(())
        for x, y in zip(micro_x, micro_y):
            inp = x if self.first else self._receive(len(x), self.index - 1).requires_grad_()
            out = self.stage(inp)
            if self.last:
                out = self.criterion(out, y) / count
                total += out.detach()
            else:
                dist.send(out.detach(), dst=self.index + 1)
            stash.append((inp, out))
        while stash:
            inp, out = stash.pop()
            if self.last:
                out.backward()
            else:
                out.backward(self._receive(len(out), self.index + 1))
            if not self.first:
                dist.send(inp.grad, dst=self.index - 1)
        return total

    @torch.no_grad()
    def predict(self, x):
        self.stage.eval()
        h = x if self.first else self._receive(len(x), self.index - 1)
        out = self.stage(h)
        if not self.last:
            dist.send(out, dst=self.index + 1)
        self.stage.train()
        return out if self.last else None
