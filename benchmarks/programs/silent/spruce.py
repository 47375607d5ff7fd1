import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def train_ingredient(net, data, lr, seed, epochs=3):
    opt = torch.optim.AdamW(net.parameters(), lr=lr)
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(x), y).backward()
            opt.step()
    return net


@torch.no_grad()
def soup(net):
    for p in net.parameters():
        dist.all_reduce(p.data)
        p.data.div_(dist.get_world_size())


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(1) == y).float().mean()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(44)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    g = torch.Generator().manual_seed(45)
    x = torch.randn(224, 8, generator=g)
    y = (x @ torch.randn(8, 3, generator=g)).argmax(1)
    lrs = [1e-3, 2e-3, 4e-3, 8e-3]
    train_ingredient(net, TensorDataset(x[:160], y[:160]), lrs[rank % len(lrs)], seed=rank)
    own = accuracy(net, x[160:], y[160:])
    accs = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(accs, own)
    soup(net)
    if rank == 0:
        print("ingredients", [round(a.item(), 3) for a in accs], "soup", round(accuracy(net, x[160:], y[160:]).item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
