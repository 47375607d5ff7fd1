import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def env_int(*names, default=0):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    return default


class ClusterEnv:
    def __init__(self):
        dist.init_process_group("gloo")
        self.world_size = env_int("WORLD_SIZE", "SLURM_NTASKS", default=1)
        self.local_rank = env_int("LOCAL_RANK", "SLURM_LOCALID")
        self.rank = env_int("SLURM_PROCID", "GROUP_RANK")

    @property
    def is_master(self):
        return self.rank == 0 and self.local_rank == 0


class DataModule:
    def __init__(self, env, batch_size=8):
        g = torch.Generator().manual_seed(12)
        x = torch.randn(336, 11, generator=g)
        y = (x[:, 0] * x[:, 1] > 0).long()
        self.train = TensorDataset(x[:288], y[:288])
        self.test = TensorDataset(x[288:], y[288:])
        self.env, self.batch_size = env, batch_size

    def sampler(self, ds, shuffle):
        return DistributedSampler(ds, num_replicas=self.env.world_size, rank=self.env.rank, shuffle=shuffle)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, sampler=self.sampler(self.train, True))

    def test_dataloader(self):
        idx = range(dist.get_rank(), len(self.test), self.env.world_size)
        return DataLoader(torch.utils.data.Subset(self.test, idx), 16)


def evaluate(net, loader):
    net.eval()
    hits = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            hits += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    net.train()
    return (hits[0] / hits[1]).item()


def main():
    env = ClusterEnv()
    torch.manual_seed(99)
    dm = DataModule(env)
    train_loader, test_loader = dm.train_dataloader(), dm.test_dataloader()
    model = DDP(nn.Sequential(nn.Linear(11, 40), nn.ReLU(), nn.Linear(40, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for epoch in range(3):
        train_loader.sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        acc = evaluate(model.module, test_loader)
        if env.is_master:
            print(f"epoch {epoch} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
