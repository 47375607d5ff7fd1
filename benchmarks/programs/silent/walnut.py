import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Client:
    def __init__(self, rank):
        g = torch.Generator().manual_seed(rank)
        n = 64 + 32 * rank
        shift = torch.randn(6, generator=g) * 0.5
        x = torch.randn(n, 6, generator=g) + shift
        w = torch.randn(6, 3, generator=torch.Generator().manual_seed(77))
        self.data = TensorDataset(x, (x @ w).argmax(1))
        self.loader = DataLoader(self.data, 16, shuffle=True, generator=g)

    def local_train(self, net, lr):
        opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        for x, y in self.loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(x), y).backward()
            opt.step()
        return len(self.data)


@torch.no_grad()
def fedavg(net, num_samples):
    weight = torch.tensor(float(num_samples))
    total = weight.clone()
    dist.all_reduce(total)
    for v in net.state_dict().values():
        v.mul_(weight / total)
        dist.all_reduce(v)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    client = Client(rank)
    for rnd in range(8):
        n = client.local_train(net, lr=0.05)
        fedavg(net, n)
        if rank == 0 and rnd % 2 == 1:
            x, y = client.data.tensors
            with torch.no_grad():
                acc = (net(x).argmax(1) == y).float().mean().item()
            print(f"round {rnd} acc on client 0 {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
