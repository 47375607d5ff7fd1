from torch.utils.data import Sampler

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class SharedWeightedSampler(Sampler):
    """All ranks draw the same weighted sequence and keep every world-th entry."""

    def __init__(self, weights, num_samples, seed=0):
        self.weights, self.num_samples, self.seed, self.epoch = weights, num_samples, seed, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.num_samples // self.world

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        idx = torch.multinomial(self.weights, self.num_samples, replacement=True, generator=g)
        return iter(idx[self.rank::self.world].tolist())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(7)
    x = torch.randn(300, 8, generator=g)
    y = (x[:, 0] > 1.3).long()
    freq = torch.bincount(y).float()
    sampler = SharedWeightedSampler((1.0 / freq)[y], 240)
    loader = DataLoader(TensorDataset(x, y), 8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(bx), by)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
