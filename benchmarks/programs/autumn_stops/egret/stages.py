import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


class FirstStage(nn.Module):
    def __init__(self, vocab, dim, depth):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])

    def forward(self, tokens):
        return self.blocks(self.embed(tokens))

    @torch.no_grad()
    def reference(self, tokens):
        """Bag-of-tokens representation that the head is regularised towards."""
        return self.embed(tokens).mean(dim=1)


class MiddleStage(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])

    def forward(self, x):
        return self.blocks(x)


class LastStage(nn.Module):
    def __init__(self, dim, depth, classes):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        pooled = self.blocks(x).mean(dim=1)
        return self.head(pooled), pooled


def build_stage(stage, num_stages, cfg):
    torch.manual_seed(cfg["seed"] + stage)
    if stage == 0:
        return FirstStage(cfg["vocab"], cfg["dim"], cfg["depth"])
    if stage == num_stages - 1:
        return LastStage(cfg["dim"], cfg["depth"], cfg["classes"])
    return MiddleStage(cfg["dim"], cfg["depth"])
