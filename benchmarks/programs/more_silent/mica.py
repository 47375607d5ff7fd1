"""Full batch L-BFGS over rows that are spread unevenly over the ranks."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ShardedObjective:
    """Value and gradient of the mean over all rows, the same on every rank."""

    def __init__(self, net, x, y, ridge):
        self.net, self.x, self.y, self.ridge = net, x, y, ridge
        n = torch.tensor(float(len(x)))
        dist.all_reduce(n)
        self.rows = n.item()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        for p in self.net.parameters():
            p.grad = None
        loss = F.mse_loss(self.net(self.x), self.y, reduction="sum") / self.rows
        loss.backward()
        packed = torch.cat([loss.detach().reshape(1)] + [p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(packed)
        value, at = packed[0], 1
        for p in self.net.parameters():
            p.grad.copy_(packed[at:at + p.numel()].view_as(p))
            p.grad.add_(p.detach(), alpha=2 * self.ridge)
            value = value + self.ridge * p.detach().pow(2).sum()
            at += p.numel()
        return value


def shard(rank, world):
    g = torch.Generator().manual_seed(50)
    x = torch.rand(900, 3, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:].pow(2)
    cut = [int(900 * (i / world) ** 1.5) for i in range(world + 1)]
    return x[cut[rank]:cut[rank + 1]], y[cut[rank]:cut[rank + 1]]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)).double()
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    x, y = shard(rank, world)
    objective = ShardedObjective(net, x.double(), y.double(), ridge=1e-6)
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=12, line_search_fn="strong_wolfe")
    for outer in range(30):
        value = opt.step(objective)
        if rank == 0 and outer % 6 == 0:
            print(f"outer {outer}: {value.item():.6f} after {objective.calls} evaluations", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
