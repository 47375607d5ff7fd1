import argparse

import torch
import torch.distributed as dist
from torch import nn

from pipeline import OneFOneB, P2P


class Stage(nn.Module):
    def __init__(self, stage, stages, vocab, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim) if stage == 0 else None
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
             for _ in range(layers)]
        )
        self.head = nn.Linear(dim, vocab) if stage == stages - 1 else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        n = x.size(1)
        mask = torch.full((n, n), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return x if self.head is None else self.head(x)


def rampup(step, spec):
    start, increment, every, limit = spec
    return min(start + increment * (step // every), limit)


def micro_batches(step, count, size, seq, vocab):
    g = torch.Generator().manual_seed(900 + step)
    out = []
    for _ in range(count):
        start = torch.randint(0, vocab, (size, 1), generator=g)
        stride = torch.randint(1, 5, (size, 1), generator=g)
        ids = (start + stride * torch.arange(seq + 1)) % vocab
        out.append((ids[:, :-1], ids[:, 1:]))
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=44)
    p.add_argument("--micro-size", type=int, default=16)
    p.add_argument("--seq", type=int, default=32)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--vocab", type=int, default=256)
    p.add_argument("--rampup", type=int, nargs=4, default=[1, 1, 20, 3],
                   metavar=("START", "INCREMENT", "EVERY", "LIMIT"))
    args = p.parse_args()

    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20 + stage)
    module = Stage(stage, stages, args.vocab, args.dim, layers=2)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    comm = P2P(stage, stages, (args.micro_size, args.seq, args.dim))

    def loss_fn(logits, labels):
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    schedule = OneFOneB(module, comm, loss_fn)
    for step in range(args.steps):
        count = rampup(step, args.rampup)
        loss = schedule.run(micro_batches(step, count, args.micro_size, args.seq, args.vocab))
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if comm.last and step % 10 == 0:
            print(f"step {step} microbatches {count} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
