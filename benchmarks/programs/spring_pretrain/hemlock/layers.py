import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

_TP = None
_DP = None


def init_model_parallel(tp):
    """Rank layout: tp fastest, then dp."""
    global _TP, _DP
    world, rank = dist.get_world_size(), dist.get_rank()
    for i in range(world // tp):
        ranks = list(range(i * tp, (i + 1) * tp))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TP = group
    for i in range(tp):
        ranks = list(range(i, world, tp))
        group = dist.new_group(ranks)
        if rank in ranks:
            _DP = group


def tp_group():
    return _TP


def dp_group():
    return _DP


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g, group=_TP)
        return g


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=_TP)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def _shard_init(weight, out_dim, in_dim, dim):
    full = torch.empty(out_dim, in_dim)
    nn.init.normal_(full, std=0.02)
    size, idx = dist.get_world_size(_TP), dist.get_rank(_TP)
    weight.data.copy_(full.chunk(size, dim)[idx])
    weight.tensor_model_parallel = True


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_dim // dist.get_world_size(_TP), in_dim))
        _shard_init(self.weight, out_dim, in_dim, 0)

    def forward(self, x):
        return F.linear(_Copy.apply(x), self.weight)


class RowParallelLinear(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim // dist.get_world_size(_TP)))
        _shard_init(self.weight, out_dim, in_dim, 1)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x):
        return _Reduce.apply(F.linear(x, self.weight)) + self.bias


class ParallelAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.local_heads = heads // dist.get_world_size(_TP)
        self.q, self.k, self.v = (ColumnParallelLinear(dim, dim) for _ in range(3))
        self.dense = RowParallelLinear(dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, self.local_heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).reshape(b, t, -1))


class ParallelBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = ParallelAttention(dim, heads)
        self.h_to_4h, self.h4_to_h = ColumnParallelLinear(dim, 4 * dim), RowParallelLinear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(self.input_layernorm(x))
        return x + self.h4_to_h(F.gelu(self.h_to_4h(self.post_attention_layernorm(x))))


class ParallelGPT(nn.Module):
    def __init__(self, vocab, seq_len, dim, heads, layers):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, dim)
        self.position_embeddings = nn.Embedding(seq_len, dim)
        nn.init.normal_(self.word_embeddings.weight, std=0.02)
        nn.init.normal_(self.position_embeddings.weight, std=0.02)
        self.layers = nn.ModuleList(ParallelBlock(dim, heads) for _ in range(layers))
        self.final_layernorm = nn.LayerNorm(dim)

    def forward(self, tokens, labels):
        x = self.word_embeddings(tokens) + self.position_embeddings.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_layernorm(x), self.word_embeddings.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
