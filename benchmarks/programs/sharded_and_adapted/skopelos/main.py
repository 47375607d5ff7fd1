"""Fully sharded language-model training with accumulation, DTensor clipping, sharded EMA and reload."""
import argparse
import dataclasses
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclasses.dataclass
class LMConfig:
    vocab: int = 50
    dim: int = 64
    layers: int = 2
    length: int = 24
    micro_batch: int = 8
    accumulate: int = 3
    updates: int = 18
    lr: float = 4e-3
    max_norm: float = 0.8
    ema: float = 0.8
    seed: int = 37
    out: str = "runs/skopelos"


class GatedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Conv1d(dim, 2 * dim, 4, padding=3)
        self.out = nn.Linear(dim, dim)
        self.ff_norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        h = self.mix(self.norm(x).transpose(1, 2))[..., :x.size(1)].transpose(1, 2)
        x = x + self.out(F.glu(h, dim=-1))
        return x + self.ff(self.ff_norm(x))


class ConvLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(GatedBlock(cfg.dim) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Corpus:
    """A long sequence from a random grammar, cut into windows; each process reads its own windows."""

    def __init__(self, cfg, seed, size):
        g = torch.Generator().manual_seed(44)
        nxt = torch.randint(0, cfg.vocab, (cfg.vocab, cfg.vocab, 2), generator=g).tolist()
        coin = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
        seq = [1, 2]
        for c in coin:
            seq.append(nxt[seq[-2] % 7][seq[-1]][c])
        seq = torch.tensor(seq)
        windows = len(seq) // (cfg.length + 1)
        self.rows = seq[:windows * (cfg.length + 1)].view(windows, cfg.length + 1)

    def shuffled(self, epoch, seed):
        g = torch.Generator().manual_seed(seed + 1000 * epoch)
        return self.rows[torch.randperm(len(self.rows), generator=g)]


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class ShardedEMA:
    """Averages the local shards; no communication is needed."""

    def __init__(self, model, decay):
        self.decay = decay
        self.values = {n: p.detach().to_local().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            self.values[n].lerp_(p.to_local(), 1 - self.decay)

    @torch.no_grad()
    def swap(self, model):
        for n, p in model.named_parameters():
            local = p.to_local()
            keep = local.clone()
            local.copy_(self.values[n])
            self.values[n] = keep


def lm_loss(model, rows, reduction="mean"):
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def perplexity(model, rows, rank, world):
    model.eval()
    mine = rows[:len(rows) - len(rows) % world][rank::world]
    stats = torch.stack([lm_loss(model, mine, "sum"), torch.tensor(float(mine[:, 1:].numel()))])
    dist.all_reduce(stats)
    model.reshard()
    model.train()
    return (stats[0] / stats[1]).exp().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=LMConfig.updates)
    ap.add_argument("--out", default=LMConfig.out)
    ns = ap.parse_args()
    cfg = LMConfig(updates=ns.updates, out=ns.out)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    torch.manual_seed(cfg.seed)
    model = shard(ConvLM(cfg), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.updates)
    ema = ShardedEMA(model, cfg.ema)
    train, valid = Corpus(cfg, 1, 24000), Corpus(cfg, 2, 3000)

    need = cfg.micro_batch * cfg.accumulate * world
    epoch, position = 0, 0
    rows = train.shuffled(epoch, cfg.seed)
    for update in range(cfg.updates):
        if position + need > len(rows):
            epoch, position = epoch + 1, 0
            rows = train.shuffled(epoch, cfg.seed)
        block = rows[position:position + need].view(cfg.accumulate, world, cfg.micro_batch, -1)
        position += need
        optimizer.zero_grad(set_to_none=True)
        value = torch.zeros(())
        for micro in range(cfg.accumulate):
            model.set_requires_gradient_sync(micro == cfg.accumulate - 1)
            loss = lm_loss(model, block[micro, rank]) / cfg.accumulate
            loss.backward()
            value += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm).full_tensor()
        optimizer.step()
        schedule.step()
        ema.update(model)
        if update % 8 == 7:
            dist.all_reduce(value)
            if rank == 0:
                print(f"update {update + 1} loss {value.item() / world:.4f} norm {norm.item():.3f}", flush=True)

    raw = perplexity(model, valid.rows, rank, world)
    ema.swap(model)
    smooth = perplexity(model, valid.rows, rank, world)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        os.makedirs(cfg.out, exist_ok=True)
        torch.save(whole, os.path.join(cfg.out, "ema.pt"))
    dist.barrier()

    torch.manual_seed(cfg.seed + 1)
    again = shard(ConvLM(cfg), mesh)
    stored = torch.load(os.path.join(cfg.out, "ema.pt")) if rank == 0 else {}
    set_model_state_dict(again, stored, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    check = perplexity(again, valid.rows, rank, world)
    if rank == 0:
        print(f"perplexity {raw:.3f} averaged {smooth:.3f} reloaded {check:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
