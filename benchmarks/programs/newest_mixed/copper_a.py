import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class TokenShards(IterableDataset):
    def __init__(self, rank, world, seq=32, shards=8, per_shard=4000):
        g = torch.Generator().manual_seed(1)
        self.shards = [torch.randint(0, 50, (per_shard,), generator=g).cumsum(0) % 97 for _ in range(shards)]
        self.rank, self.world, self.seq = rank, world, seq

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rng = random.Random(42 + worker + self.rank)
        while True:
            names = list(range(len(self.shards)))
            rng.shuffle(names)
            for s in names:
                tokens = self.shards[s]
                starts = list(range(0, len(tokens) - self.seq - 1, self.seq))
                rng.shuffle(starts)
                for i in starts:
                    chunk = tokens[i : i + self.seq + 1]
                    yield chunk[:-1].clone(), chunk[1:].clone()


class LM(nn.Module):
    def __init__(self, vocab=97, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(32, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.emb(x) + self.pos, mask=mask, is_causal=True))


def train(model, opt, loader, steps, rank):
    for step, (x, y) in zip(range(steps), loader):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(TokenShards(rank, world), batch_size=16, num_workers=2)
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last = train(model, opt, loader, 100, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
