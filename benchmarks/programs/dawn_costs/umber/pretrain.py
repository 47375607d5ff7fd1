"""Decoder-only transformer trained with fully_shard; consolidated checkpoints every few steps."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1 = nn.Linear(dim, 3 * dim, bias=False)
        self.w2 = nn.Linear(3 * dim, dim, bias=False)
        self.heads = heads

    def forward(self, x):
        q, k, v = self.wqkv(self.attn_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        return x + self.w2(F.silu(self.w1(self.ffn_norm(x))))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, heads, depth):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


class CheckpointManager:
    def __init__(self, folder, interval):
        self.folder, self.interval = folder, interval
        self.options = StateDictOptions(full_state_dict=True, cpu_offload=True)

    def maybe_save(self, model, step):
        if step % self.interval:
            return
        weights = get_model_state_dict(model, options=self.options)
        if dist.get_rank() == 0:
            path = os.path.join(self.folder, f"step-{step:06d}.pt")
            torch.save({"step": step, "model": weights}, path)
            print(f"saved {os.path.basename(path)}", flush=True)


def markov_tokens(table, rows, length, gen):
    seq = torch.empty(rows, length, dtype=torch.long)
    seq[:, 0] = torch.randint(table.shape[0], (rows,), generator=gen)
    for t in range(1, length):
        pick = torch.randint(table.shape[1], (rows,), generator=gen)
        seq[:, t] = table[seq[:, t - 1], pick]
    return seq


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--ckpt-interval", type=int, default=20)
    p.add_argument("--vocab", type=int, default=128)
    p.add_argument("--dim", type=int, default=64)
    cfg = p.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
    torch.manual_seed(21)
    model = Decoder(cfg.vocab, cfg.dim, heads=4, depth=3)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    table = torch.randint(cfg.vocab, (cfg.vocab, 3), generator=torch.Generator().manual_seed(2))
    gen = torch.Generator().manual_seed(900 + rank)

    with tempfile.TemporaryDirectory(prefix="decoder-") as folder:
        ckpt = CheckpointManager(folder, cfg.ckpt_interval)
        for step in range(1, cfg.steps + 1):
            tokens = markov_tokens(table, 8, 48, gen)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            opt.step()
            opt.zero_grad()
            if step % 5 == 0 and rank == 0:
                print(f"step: {step:3d}  loss: {loss.item():.4f}", flush=True)
            ckpt.maybe_save(model, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
