"""Pretraining with fully sharded parameters."""
import argparse
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from grad_utils import clip_gradients
from model import MiniLlama


class TokenSource:
    """Second order Markov text, every data parallel rank draws from its own generator."""

    def __init__(self, vocab, ctx, batch, seed):
        base = torch.Generator().manual_seed(17)
        self.next_tok = torch.randint(0, vocab, (vocab, 3), generator=base)
        self.g = torch.Generator().manual_seed(seed)
        self.vocab, self.ctx, self.batch = vocab, ctx, batch

    def __next__(self):
        tok = torch.randint(0, self.vocab, (self.batch,), generator=self.g)
        out = [tok]
        for _ in range(self.ctx):
            tok = self.next_tok[tok, torch.randint(0, 3, (self.batch,), generator=self.g)]
            out.append(tok)
        return torch.stack(out, 1)


def apply_fsdp(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def mean_over_ranks(value):
    t = torch.tensor(value)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--ctx", type=int, default=48)
    p.add_argument("--vocab", type=int, default=96)
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--max-norm", type=float, default=0.25)
    a = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    model = apply_fsdp(MiniLlama(a.vocab), mesh)
    params = [q for q in model.parameters() if q.requires_grad]
    opt = torch.optim.SGD(params, lr=a.lr, momentum=0.9)
    source = TokenSource(a.vocab, a.ctx, a.batch, seed=100 + rank)

    t0 = time.perf_counter()
    for step in range(1, a.steps + 1):
        seq = next(source)
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
        loss.backward()
        gnorm = clip_gradients(params, a.max_norm)
        opt.step()
        opt.zero_grad()
        if step % 10 == 0:
            shown = mean_over_ranks(loss.item())
            if rank == 0:
                print(f"step {step:3d} loss {shown:.4f} gnorm {gnorm:.3f} {time.perf_counter() - t0:.1f}s", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
