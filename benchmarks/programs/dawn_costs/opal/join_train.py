"""Translation-like GRU on shards of different sizes: each site brings what it has."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH = 40, 20


class Mapper(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, VOCAB)

    def forward(self, src):
        return self.out(self.gru(self.emb(src))[0])


def site_data(rank, base, extra):
    """Target token: source token shifted by its right neighbour."""
    count = base + rank * extra
    g = torch.Generator().manual_seed(600 + rank)
    src = torch.randint(VOCAB, (count, LENGTH), generator=g)
    tgt = (src + F.pad(src[:, 1:], (0, 1))) % VOCAB
    return TensorDataset(src, tgt)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--base", type=int, default=960, help="rows of the smallest site")
    p.add_argument("--extra", type=int, default=480, help="more rows for each further site")
    a = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(20)
    model = DDP(Mapper())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    loader = DataLoader(site_data(rank, a.base, a.extra), a.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(rank))
    for epoch in range(a.epochs):
        sums = torch.zeros(3)
        with Join([model]):
            for src, tgt in loader:
                scores = model(src)
                loss = F.cross_entropy(scores.flatten(0, 1), tgt.flatten())
                opt.zero_grad()
                loss.backward()
                opt.step()
                sums += torch.tensor([loss.item(), (scores.argmax(-1) == tgt).float().mean().item(), 1.0])
        local = int(sums[2])
        dist.all_reduce(sums)
        print(f"rank {rank} epoch {epoch} batches {local} "
              f"loss {sums[0] / sums[2]:.4f} acc {sums[1] / sums[2]:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
