import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from views import Augmented


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ds = Augmented(n=600, rank=rank, world=world)
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank, shuffle=True, seed=21)
    loader = DataLoader(ds, batch_size=20, sampler=sampler)
    torch.manual_seed(18)
    model = DDP(nn.Sequential(nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        ds.reseed(epoch)
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += loss.detach()
        if rank == 0:
            print(f"epoch {epoch} loss {float(total) / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
