"""Supervised fine-tuning with FSDP2 and micro-batches."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.norm2(x))


class CausalLM(nn.Module):
    def __init__(self, vocab=64, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def masked_loss(model, batch):
    ids, mask = batch
    logits = model(ids[:, :-1])
    nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    m = mask[:, 1:].flatten()
    return (nll * m).sum() / m.sum()


class SFTTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(0)
        self.model = CausalLM()
        for layer in self.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
        self.gen = torch.Generator().manual_seed(dist.get_rank())

    def global_batch(self):
        n = self.cfg.micro_batch * self.cfg.accum
        start = torch.randint(0, 64, (n, 1), generator=self.gen)
        ids = (start + torch.randint(1, 5, (n, 1), generator=self.gen) * torch.arange(20)) % 64
        mask = torch.ones(n, 20)
        mask[:, :6] = 0
        return ids, mask

    def training_step(self):
        self.opt.zero_grad()
        ids, mask = self.global_batch()
        micro = list(zip(ids.split(self.cfg.micro_batch), mask.split(self.cfg.micro_batch)))
        total = 0.0
        for i, mb in enumerate(micro):
            self.model.set_requires_gradient_sync(i == len(micro) - 1)
            loss = masked_loss(self.model, mb)
            loss.backward()
            total += loss.item() / len(micro)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.opt.step()
        return total, norm.full_tensor().item()

    def fit(self):
        for step in range(self.cfg.steps):
            loss, norm = self.training_step()
            if dist.get_rank() == 0 and step % 5 == 0:
                print(f"step {step} loss {loss:.3f} grad_norm {norm:.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=25)
    ap.add_argument("--micro-batch", type=int, default=4)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--clip", type=float, default=10.0)
    dist.init_process_group("gloo")
    SFTTrainer(ap.parse_args()).fit()
    dist.destroy_process_group()
