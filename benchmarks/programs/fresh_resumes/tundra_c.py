import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

LENGTHS = (24, 48)


class Encoder(nn.Module):
    def __init__(self, vocab=400, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.out = nn.Linear(dim, 6)

    def forward(self, ids):
        h = self.emb(ids)
        return self.out((h + self.mix(h)).mean(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--backend", default="aot_eager")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(85)
    loaders = []
    for length in LENGTHS:
        ids = torch.randint(0, 400, (3072, length), generator=g)
        data = TensorDataset(ids, ids[:, 0] % 6)
        sampler = DistributedSampler(data, shuffle=True, seed=length, drop_last=True)
        loaders.append((sampler, DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)))
    model = DDP(torch.compile(Encoder(), backend=args.backend, dynamic=False))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for sampler, _ in loaders:
            sampler.set_epoch(epoch)
        for pair in zip(*(loader for _, loader in loaders)):
            for ids, y in pair:
                opt.zero_grad(set_to_none=True)
                loss = F.cross_entropy(model(ids), y)
                loss.backward()
                opt.step()
        if dist.get_rank() == 0:
            print(epoch, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
