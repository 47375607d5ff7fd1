import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Schedule:
    def __init__(self, first, last, ramp, multiple):
        self.first, self.last, self.ramp, self.multiple = first, last, ramp, multiple

    def __call__(self, step):
        share = min(1.0, step / self.ramp)
        value = self.first + share * (self.last - self.first)
        return max(self.multiple, int(value // self.multiple) * self.multiple)


class Causal(nn.Module):
    def __init__(self, vocab=160, dim=64, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)

    def positions(self, length, dim):
        t = torch.arange(length).unsqueeze(1)
        f = torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
        return torch.stack([(t * f).sin(), (t * f).cos()], -1).flatten(1)

    def forward(self, ids):
        x = self.emb(ids) + self.positions(ids.size(1), 64)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        return self.out(self.body(x, mask=mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    length = Schedule(16, 128, ramp=60, multiple=8)
    batch = Schedule(4, 12, ramp=60, multiple=4)
    model = DDP(Causal())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    gen = torch.Generator().manual_seed(30 + rank)
    for step in range(args.steps):
        n, b = length(step), batch(step)
        ids = (torch.randint(0, 160, (b, 1), generator=gen) + torch.arange(n + 1)) % 160
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        warm.step()
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1} length {n} batch {b} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
