import argparse
import time

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch._dynamo.config.recompile_limit = 512
torch._dynamo.config.accumulated_recompile_limit = 1024


class Tagger(nn.Module):
    def __init__(self, vocab=120, dim=64, tags=9):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.conv1 = nn.Conv1d(dim, dim, 5, padding=2)
        self.conv2 = nn.Conv1d(dim, dim, 5, padding=2)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        x = self.emb(ids)
        h = torch.relu(self.conv1(x.transpose(1, 2)))
        h = torch.relu(self.conv2(h)).transpose(1, 2)
        return self.out(self.norm(x + h))


def pad(rows, multiple=1):
    longest = max(len(r) for r in rows)
    longest = -(-longest // multiple) * multiple
    out = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out


def sample(gen, batch):
    lengths = (torch.randint(3, 41, (batch,), generator=gen) * 4).tolist()
    return [torch.randint(1, 120, (n,), generator=gen) for n in lengths]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--backend", default="eager")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tagger = Tagger()
    tagger.forward = torch.compile(tagger.forward, backend=args.backend, dynamic=False)
    model = DDP(tagger)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(31 + rank)
    mark = time.perf_counter()
    for step in range(args.steps):
        ids = pad(sample(gen, args.batch), multiple=160)
        target = ids % 9
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 19:
            now = time.perf_counter()
            print(f"step {step + 1} loss {loss.item():.3f} {(now - mark) / 20 * 1000:.0f} ms/step", flush=True)
            mark = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
