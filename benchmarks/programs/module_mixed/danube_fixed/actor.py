import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from seqlen import prepare_dynamic_batch


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mix = nn.GRU(d, d, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.mix(self.norm(x))[0]
        return x + self.mlp(x)


class Policy(nn.Module):
    def __init__(self, vocab, d=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, tokens):
        h = self.embed(tokens)
        for blk in self.blocks:
            h = blk(h)
        return self.head(h)


def build_policy(cfg, mesh):
    torch.manual_seed(cfg.seed)
    policy = Policy(cfg.vocab)
    for blk in policy.blocks:
        fully_shard(blk, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    return policy


class DataParallelActor:
    def __init__(self, cfg, policy, group):
        self.cfg = cfg
        self.policy = policy
        self.group = group
        self.optim = torch.optim.AdamW(policy.parameters(), lr=cfg.lr)

    def _loss(self, micro):
        logits = self.policy(micro["tokens"][:, :-1])
        target = micro["tokens"][:, 1:]
        logp = -F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        mask = torch.arange(target.size(1))[None] < (micro["lengths"] - 1)[:, None]
        return -(logp * mask * micro["advantages"][:, None]).sum() / mask.sum()

    def update_policy(self, batch):
        micro_batches = prepare_dynamic_batch(batch, max_token_len=self.cfg.max_token_len, dp_group=self.group)
        total = len(batch["lengths"])
        self.optim.zero_grad()
        out = 0.0
        for micro in micro_batches:
            loss = self._loss(micro) * (len(micro["lengths"]) / total)
            loss.backward()
            out += loss.item()
        self.optim.step()
        return out
