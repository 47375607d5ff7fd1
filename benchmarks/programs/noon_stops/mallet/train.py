import argparse

import torch
import torch.distributed as dist
from torch import nn

from wires import Wires


class Section(nn.Module):
    def __init__(self, wires, vocab, dim, depth):
        super().__init__()
        self.wires = wires
        self.embed = nn.Embedding(vocab, dim) if wires.first else None
        self.cells = nn.ModuleList([nn.GRU(dim, dim, batch_first=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab) if wires.last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for cell in self.cells:
            x = x + cell(x)[0]
        x = self.norm(x)
        return x if self.head is None else self.head(x)


def micro_batches(step, vocab):
    """Length buckets: each step has its own number of micro-batches and lengths."""
    g = torch.Generator().manual_seed(70 + step)
    out = []
    for _ in range(2 + step % 4):
        length = int(torch.randint(12, 40, (1,), generator=g))
        rows = 640 // length
        start = torch.randint(0, vocab, (rows, 1), generator=g)
        stride = torch.randint(1, 4, (rows, 1), generator=g)
        ids = (start + stride * torch.arange(length + 1)) % vocab
        out.append((ids[:, :-1], ids[:, 1:]))
    return out


def run_step(section, micros, step):
    """Even steps drain in arrival order, odd steps drain last-in first-out."""
    wires = section.wires
    kept, losses = [], []
    for m, (ids, labels) in enumerate(micros):
        x = None if wires.first else wires.pull_activation(m)
        y = section(ids if wires.first else x)
        if wires.last:
            y = nn.functional.cross_entropy(y.flatten(0, 1), labels.flatten()) / len(micros)
            losses.append(y.item())
        else:
            wires.push_activation(y, m)
        kept.append((m, x, y))
    order = kept if step % 2 == 0 else kept[::-1]
    for m, x, y in order:
        y.backward(None if wires.last else wires.pull_gradient(y, m))
        if x is not None:
            wires.push_gradient(x.grad, m)
    wires.flush()
    return sum(losses)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=48)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--vocab", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    wires = Wires(stage, stages, args.dim)
    torch.manual_seed(5 + stage)
    section = Section(wires, args.vocab, args.dim, depth=2 if wires.first else 1)
    opt = torch.optim.AdamW(section.parameters(), lr=2e-3)
    for step in range(args.steps):
        opt.zero_grad(set_to_none=True)
        micros = micro_batches(step, args.vocab)
        loss = run_step(section, micros, step)
        nn.utils.clip_grad_norm_(section.parameters(), 1.0)
        opt.step()
        if wires.last and step % 8 == 0:
            print(f"step {step} micro-batches {len(micros)} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
