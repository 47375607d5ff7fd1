from torch.utils.data import Sampler

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class CurriculumSampler(Sampler):
    def __init__(self, difficulty, epochs, batch, seed=0):
        self.order = torch.argsort(difficulty)
        self.epochs, self.batch, self.seed, self.epoch = epochs, batch, seed, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _pool(self):
        share = 0.4 + 0.6 * self.epoch / (self.epochs - 1)
        unit = self.batch * self.world
        return self.order[: int(len(self.order) * share) // unit * unit]

    def __len__(self):
        return len(self._pool()) // self.world

    def __iter__(self):
        pool = self._pool()
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        pool = pool[torch.randperm(len(pool), generator=g)]
        return iter(pool[self.rank::self.world].tolist())


def main():
    dist.init_process_group("gloo")
    epochs, batch = 4, 8
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(240, 5, generator=g)
    margin = x @ torch.randn(5, generator=g)
    ds = TensorDataset(x, (margin > 0).long())
    sampler = CurriculumSampler(-margin.abs(), epochs, batch)
    loader = DataLoader(ds, batch, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        n = 0
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(bx), by)
            loss.backward()
            opt.step()
            n += len(by)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} samples {n} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
