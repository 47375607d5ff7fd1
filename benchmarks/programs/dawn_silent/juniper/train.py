import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from muon import ShardedMuon, average_gradients


class AutoregressiveMLP(nn.Module):
    def __init__(self, vocab=40, ctx=8, dim=32, hidden=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.fc1, self.fc2, self.fc3 = nn.Linear(ctx * dim, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        h = F.relu(self.fc1(self.emb(x).flatten(1))).square()
        h = h + F.relu(self.fc2(h))
        h = h + F.relu(self.fc3(h))
        return self.head(h)


def walk(gen, n, vocab=40, ctx=8):
    """Second-order recurrences: the next symbol repeats the last difference."""
    a = torch.randint(0, vocab, (n, 1), generator=gen)
    d = torch.randint(1, 8, (n, 1), generator=gen)
    seq = (a + d * torch.arange(ctx + 1)) % vocab
    odd = torch.rand(n, generator=gen) < 0.1
    return seq[:, :-1], torch.where(odd, torch.randint(0, vocab, (n,), generator=gen), seq[:, -1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    model = AutoregressiveMLP()
    matrices = [model.fc1.weight, model.fc2.weight, model.fc3.weight]
    held = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in held]
    muon = ShardedMuon(matrices, lr=0.006)
    adam = torch.optim.Adam(others, lr=1e-3)
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(args.steps):
        x, y = walk(gen, args.batch)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        average_gradients(others)
        muon.step()
        adam.step()
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
