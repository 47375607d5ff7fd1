"""Low-rank adapters on a frozen FSDP2 base model."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a = nn.Linear(d, 2 * d)
        self.b = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class Base(nn.Module):
    def __init__(self, vocab=30, d=32, depth=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(depth))
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.emb(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[None, :, None]
        for l in self.layers:
            x = l(x)
        return self.head(x)


def inject(model, rank, alpha):
    model.requires_grad_(False)
    for l in model.layers:
        l.a = LoRALinear(l.a, rank, alpha)
        l.b = LoRALinear(l.b, rank, alpha)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--alpha", type=float, default=8.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    me = dist.get_rank()
    torch.manual_seed(9)
    model = inject(Base(), args.rank, args.alpha)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for l in model.layers:
        fully_shard(l, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=1e-2)
    gen = torch.Generator().manual_seed(60 + me)
    for step in range(args.steps):
        ids = torch.randint(0, 30, (16, 1), generator=gen) + 2 * torch.arange(13)
        ids %= 30
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if me == 0 and step % 6 == 0:
            print(f"step {step} trainable {sum(p.numel() for p in trainable)} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
