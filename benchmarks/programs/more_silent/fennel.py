"""Mixture of experts: each rank hosts two experts of its own, the rest of the network is replicated."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Collect(torch.autograd.Function):
    """rows of all ranks, in rank order"""

    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return torch.cat(out)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g.narrow(0, dist.get_rank() * ctx.n, ctx.n)


class Return(torch.autograd.Function):
    """sums the experts' partial answers and hands every rank its own rows"""

    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0] // dist.get_world_size()
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x.narrow(0, dist.get_rank() * ctx.n, ctx.n).clone()

    @staticmethod
    def backward(ctx, g):
        out = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(out, g.contiguous())
        return torch.cat(out)


class ExpertLayer(nn.Module):
    def __init__(self, width, per_rank=2):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.gate = nn.Linear(width, per_rank * world)
        with torch.random.fork_rng():
            torch.manual_seed(900 + rank)          # experts are meant to be different
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(per_rank))
        self.first = rank * per_rank

    def forward(self, x):
        prob = F.softmax(self.gate(x), -1)
        top = prob.topk(2, dim=-1)
        weight = torch.zeros_like(prob).scatter(1, top.indices, top.values)
        weight = weight / weight.sum(-1, keepdim=True)
        every_x, every_w = Collect.apply(x), Collect.apply(weight)
        mixed = sum(every_w[:, self.first + i, None] * e(every_x) for i, e in enumerate(self.experts))
        return x + Return.apply(mixed)


class Net(nn.Module):
    def __init__(self, dim, width, classes):
        super().__init__()
        self.stem = nn.Linear(dim, width)
        self.moe = ExpertLayer(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.moe(F.gelu(self.stem(x))))


@torch.no_grad()
def finish_gradients(net):
    """Replicated weights: mean over the ranks. Experts have already seen the rows of every rank."""
    world = dist.get_world_size()
    for name, p in net.named_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if ".experts." not in name:
            dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(800, 12, generator=g)
    y = (x[:, :6] * x[:, 6:]).sum(1).gt(0).long() + 2 * (x[:, 0] > 0).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=25, sampler=sampler, drop_last=True)
    net = Net(12, 32, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            finish_gradients(net)
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
