"""Deep ensemble: each process fits its own bootstrap replicate, votes are pooled at the end."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=g) * torch.pi
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.stack([torch.cos(t) * (1 - 2 * y) + y, torch.sin(t) * (1 - 2 * y) + 0.5 * y], 1)
    return x + 0.15 * torch.randn(n, 2, generator=g), y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234 + rank)
    width = [32, 64, 48][rank % 3]
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    ds = TensorDataset(*moons(1500, 0))
    boot = RandomSampler(ds, replacement=True, num_samples=len(ds))
    loader = DataLoader(ds, batch_size=50, sampler=boot)
    xv, yv = moons(1000, 1)
    best, patience, epoch = 1e9, 0, 0
    while epoch < 8 and patience < 2:
        net.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            v = nn.functional.cross_entropy(net(xv), yv).item()
        best, patience = (v, 0) if v < best - 1e-3 else (best, patience + 1)
        print(f"[member {rank}] epoch {epoch} val {v:.4f}", flush=True)
        epoch += 1
    with torch.no_grad():
        prob = net(xv).softmax(1)
    single = (prob.argmax(1) == yv).float().mean()
    dist.all_reduce(prob)
    print(f"[member {rank}] epochs {epoch} alone {single:.3f} pooled {(prob.argmax(1) == yv).float().mean():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
