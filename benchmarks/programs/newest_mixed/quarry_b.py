import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class GradAverager:
    def __init__(self, params):
        self.params = list(params)
        for p in self.params:
            dist.broadcast(p.data, 0)

    def __call__(self):
        world = dist.get_world_size()
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= world
        offset = 0
        for p in self.params:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


class TinyLM(nn.Module):
    def __init__(self, vocab=80, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


class PackedChats:
    def __init__(self, rank, world, row=48, size=1400):
        g = torch.Generator().manual_seed(9)
        lengths = torch.randint(4, 40, (size,), generator=g).tolist()
        self.docs = [(torch.arange(n) * (i % 5 + 1) + i) % 80 for i, n in enumerate(lengths)]
        self.cursor, self.world, self.row = rank, world, row
        self.size = size

    def row_of_tokens(self):
        row = []
        while len(row) < self.row + 1:
            doc = self.docs[self.cursor % self.size]
            self.cursor += self.world
            row.extend(doc.tolist())
        return row[: self.row + 1]

    def batch(self, n=8):
        t = torch.tensor([self.row_of_tokens() for _ in range(n)])
        return t[:, :-1], t[:, 1:]

    @property
    def progress(self):
        return min(1.0, self.cursor / self.size)


def lr_multiplier(progress, warm=0.05):
    if progress < warm:
        return (progress + 1e-3) / warm
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - warm) / (1 - warm)))


def current_progress(data):
    p = torch.tensor(data.progress)
    return p.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = TinyLM()
    average = GradAverager(model.parameters())
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    data = PackedChats(rank, world)
    progress = 0.0
    for step in range(70):
        x, y = data.batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        average()
        progress = max(progress, current_progress(data))
        for group in opt.param_groups:
            group["lr"] = 4e-3 * lr_multiplier(progress)
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} progress {progress:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
