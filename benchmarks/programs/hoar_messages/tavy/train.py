import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

from ring import ring_attention


class Probe(nn.Module):
    """Frozen attention features, trained read-out."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False).requires_grad_(False)
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 16))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.readout(ring_attention(q.contiguous(), k.contiguous(), v.contiguous()))


def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def main(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert args.seq_len % world == 0
    torch.manual_seed(0)
    model = Probe(args.dim)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    local = slice(rank * args.seq_len // world, (rank + 1) * args.seq_len // world)

    for step in range(args.steps):
        tokens = torch.randn(2, args.seq_len, args.dim)
        labels = tokens[..., :16].cumsum(1).argmax(-1)
        logits = model(tokens[:, local])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 16), labels[:, local].reshape(-1))
        opt.zero_grad()
        loss.backward()
        average_gradients(model)
        opt.step()
        if step % 5 == 0 and rank == world - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seq-len", type=int, default=96)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--steps", type=int, default=20)
    main(ap.parse_args())
