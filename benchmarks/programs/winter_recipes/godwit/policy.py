from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F


@lru_cache(maxsize=4)
def attention_bias(prompt_lengths, length, heads):
    """ALiBi slopes plus prefix mask: prompts see each other both ways, answers are causal.
    The policy and the reference ask for the same bias within a step."""
    t = torch.arange(length)
    causal = t[None, :] <= t[:, None]
    prompt = torch.tensor(prompt_lengths)[:, None, None] > t
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    bias = -slopes[:, None, None] * (t[:, None] - t[None, :]).abs()
    bias = bias.repeat(len(prompt_lengths), 1, 1, 1)
    return bias.masked_fill_(~(causal | prompt)[:, None], float("-inf"))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, bias):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, t, c))
        return x + self.ff(self.n2(x))


class PrefixLM(nn.Module):
    def __init__(self, vocab=128, dim=32, layers=1, heads=4):
        super().__init__()
        self.heads = heads
        self.tok = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, prompt_lengths, answer_mask):
        """Summed log probability of the answers."""
        bias = attention_bias(tuple(prompt_lengths.tolist()), ids.size(1), self.heads)
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x, bias)
        logp = self.head(self.norm(x))[:, :-1].log_softmax(-1)
        logp = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        return (logp * answer_mask[:, 1:]).sum(-1)
