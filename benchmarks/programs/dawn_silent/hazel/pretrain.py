"""Pre-training of a small gated MLP mixer on token windows with hybrid sharding (fully_shard on a 2-D mesh)."""
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class ModelArgs:
    vocab: int = 64
    dim: int = 64
    window: int = 12
    layers: int = 2


@dataclass
class JobConfig:
    model: ModelArgs = field(default_factory=ModelArgs)
    replicate: int = 2
    batch: int = 32
    steps: int = 90
    lr: float = 3e-3
    seed: int = 1234


class MixerBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(args.dim), nn.LayerNorm(args.dim)
        self.tokens = nn.Linear(args.window, args.window)
        self.up = nn.Linear(args.dim, 4 * args.dim)
        self.down = nn.Linear(2 * args.dim, args.dim)

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Mixer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.emb = nn.Embedding(args.vocab, args.dim)
        self.blocks = nn.ModuleList(MixerBlock(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim * args.window, args.vocab)

    def init_weights(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.05)
                nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Embedding):
                nn.init.normal_(m.weight, std=0.5)

    def forward(self, idx):
        x = self.emb(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(1))


class Windows:
    """Affine recurrences over the vocabulary with a little noise."""

    def __init__(self, cfg, rank):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(cfg.seed * 100 + rank)

    def __next__(self):
        m, n = self.cfg.model, self.cfg.batch
        step = torch.randint(1, 6, (n, 1), generator=self.gen)
        start = torch.randint(0, m.vocab, (n, 1), generator=self.gen)
        seq = (start + step * torch.arange(m.window + 1)) % m.vocab
        flip = torch.rand(n, m.window, generator=self.gen) < 0.05
        x = torch.where(flip, torch.randint(0, m.vocab, (n, m.window), generator=self.gen), seq[:, :-1])
        return x, seq[:, -1]


def build_model(cfg, mesh, rank):
    torch.manual_seed(cfg.seed)
    model = Mixer(cfg.model)
    model.init_weights()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    cfg = JobConfig()
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (cfg.replicate, world // cfg.replicate), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = build_model(cfg, mesh, rank)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 15))
    data = Windows(cfg, rank)
    for step in range(cfg.steps):
        x, y = next(data)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        if step % 15 == 0 or step == cfg.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:4d}  loss {mean.item() / world:.4f}  lr {sched.get_last_lr()[0]:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
