"""Small mixture-of-experts LM, dense part data parallel, experts expert parallel."""
import argparse
import logging
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import MoELayer

log = logging.getLogger("moe-pretrain")


class Block(nn.Module):
    def __init__(self, cfg, group):
        super().__init__()
        self.heads = cfg.heads
        self.n1, self.n2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.moe = MoELayer(cfg.dim, cfg.hidden, cfg.experts, group)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.moe(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, cfg, group):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.seq_len, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg, group) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


class Corpus:
    """Order-1 Markov text: a broad mix first, then an annealing phase on the digits domain only."""

    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(1000 + rank)
        table_gen = torch.Generator().manual_seed(7)
        self.next_tok = torch.randint(0, cfg.vocab, (cfg.vocab, 4), generator=table_gen)

    def batch(self, step):
        cfg = self.cfg
        seq = torch.empty(cfg.batch, cfg.seq_len + 1, dtype=torch.long)
        if step >= cfg.anneal_at:
            seq.random_(0, cfg.digits, generator=self.gen)
            return seq[:, :-1], seq[:, 1:]
        seq[:, 0] = torch.randint(0, cfg.vocab, (cfg.batch,), generator=self.gen)
        for t in range(cfg.seq_len):
            pick = torch.randint(0, 4, (cfg.batch,), generator=self.gen)
            seq[:, t + 1] = self.next_tok[seq[:, t], pick]
        return seq[:, :-1], seq[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--batch", type=int, default=2)
    ap.add_argument("--seq-len", type=int, default=24)
    ap.add_argument("--vocab", type=int, default=64)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--experts", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--anneal-at", type=int, default=160)
    ap.add_argument("--digits", type=int, default=5)
    ap.add_argument("--router-lr-mult", type=float, default=4.0)
    cfg = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ep_group = dist.new_group(list(range(world)))

    torch.manual_seed(42)
    model = MoELM(cfg, ep_group)
    expert_params = [p for n, p in model.named_parameters() if ".experts." in n]
    router_params = [p for n, p in model.named_parameters() if ".router." in n]
    dense_params = [p for n, p in model.named_parameters() if ".experts." not in n]
    with torch.no_grad():  # each rank owns different experts
        gen = torch.Generator().manual_seed(500 + rank)
        for p in expert_params:
            p.copy_(torch.randn(p.shape, generator=gen) * p.std())
    base = [p for n, p in model.named_parameters() if ".router." not in n]
    opt = torch.optim.AdamW([{"params": base, "mult": 1.0}, {"params": router_params, "mult": cfg.router_lr_mult}],
                            lr=cfg.lr, weight_decay=0.01)

    data, t0 = Corpus(cfg, rank), time.time()
    for step in range(cfg.steps):
        lr = cfg.lr * min(1, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / cfg.steps))
        for g in opt.param_groups:
            g["lr"] = lr * g["mult"]
        x, y = data.batch(step)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in dense_params])
        dist.all_reduce(flat)
        flat.div_(world)
        offset = 0
        for p in dense_params:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        for p in expert_params:  # already summed over the peers' tokens
            if p.grad is not None:
                p.grad.div_(world)
        opt.step()
        if step % 20 == 0:
            stat = loss.detach().clone()
            dist.all_reduce(stat)
            if rank == 0:
                load = " ".join(f"{v:.0f}" for v in model.blocks[-1].moe.load.tolist())
                log.info("step %d loss %.4f load [%s] %.1fs", step, stat.item() / world, load, time.time() - t0)
    dist.barrier()
    if rank == 0:
        log.info("done in %.1fs", time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
