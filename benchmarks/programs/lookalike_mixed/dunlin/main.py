import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hooks import HookState, bucket_hook


def digits(n=640):
    g = torch.Generator().manual_seed(3)
    y = torch.randint(0, 8, (n,), generator=g)
    proto = torch.randn(8, 32, generator=g)
    return TensorDataset(proto[y] + 0.8 * torch.randn(n, 32, generator=g), y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    model.register_comm_hook(HookState(dist.group.WORLD, start=30), bucket_hook)
    ds = digits()
    loader = DataLoader(ds, batch_size=20, sampler=DistributedSampler(ds, seed=9), drop_last=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {float(total) / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
