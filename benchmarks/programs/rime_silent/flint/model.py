import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from parallel import ColumnLinear, Norm, RowLinear, gather_seq, tag


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.head_dim = dim // heads
        self.ln_attn, self.ln_mlp = Norm(dim), Norm(dim)
        self.q, self.k, self.v = (ColumnLinear(dim, dim) for _ in range(3))
        self.out = RowLinear(dim, dim)
        self.up, self.down = ColumnLinear(dim, 4 * dim), RowLinear(4 * dim, dim)

    def _heads(self, t):
        s, b, _ = t.shape
        return t.view(s, b, -1, self.head_dim).permute(1, 2, 0, 3)

    def forward(self, x):
        h = gather_seq(self.ln_attn(x))
        q, k, v = (self._heads(m(h)) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.permute(2, 0, 1, 3).flatten(2))
        h = gather_seq(self.ln_mlp(x))
        return x + self.down(F.gelu(self.up(h)))


class GPT(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, layers=2, seq=64):
        super().__init__()
        self.tok = tag(nn.Embedding(vocab, dim))
        self.pos = tag(nn.Embedding(seq, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(dim)
        self.head = tag(nn.Linear(dim, vocab, bias=False))

    def forward(self, tokens, labels):
        world, rank = dist.get_world_size(), dist.get_rank()
        pos = torch.arange(tokens.size(0)).unsqueeze(1)
        ids, pos, lab = (t.chunk(world, dim=0)[rank] for t in (tokens, pos, labels))
        x = self.tok(ids) + self.pos(pos)
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), lab.flatten(), reduction="sum") / labels.numel()
