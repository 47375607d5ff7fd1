import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Mixed(Dataset):
    def __init__(self, n=768, dim=16):
        g = torch.Generator().manual_seed(61)
        self.x = torch.randn(n, dim, generator=g)
        self.y = torch.where(self.x[:, :1] > 0, self.x[:, 1:2], self.x[:, 2:3] ** 2)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, buffer):
        out = torch.empty_like(buffer)
        dist.all_to_all_single(out, buffer)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad)
        return out


class ExpertLayer(nn.Module):
    """One expert per rank, top-1 routing, fixed capacity, tokens travel by all-to-all."""

    def __init__(self, dim, world, rank, capacity):
        super().__init__()
        self.world, self.capacity = world, capacity
        self.router = nn.Linear(dim, world)
        generator = torch.Generator().manual_seed(900 + rank)
        self.expert = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, dim))
        with torch.no_grad():
            for p in self.expert.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.15)

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        weight, choice = probs.max(-1)
        one_hot = F.one_hot(choice, self.world)
        place = (one_hot.cumsum(0) - 1).gather(1, choice[:, None]).squeeze(1)
        kept = place < self.capacity
        slot = (choice * self.capacity + place)[kept]
        buffer = x.new_zeros(self.world * self.capacity, x.shape[1]).index_copy(0, slot, x[kept])
        received = Exchange.apply(buffer)
        returned = self.expert(received)
        back = Exchange.apply(returned.contiguous())
        routed = x.new_zeros(x.shape).index_copy(0, kept.nonzero().squeeze(1), back[slot])
        balance = self.world * (one_hot.float().mean(0) * probs.mean(0)).sum()
        return x + weight[:, None] * routed, balance


class Model(nn.Module):
    def __init__(self, world, rank, capacity, dim=16):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.moe = ExpertLayer(dim, world, rank, capacity)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h, balance = self.moe(torch.tanh(self.inp(x)))
        return self.out(h), balance


def split(model):
    own = list(model.moe.expert.parameters())
    ids = {id(p) for p in own}
    return [p for p in model.parameters() if id(p) not in ids], own


def finish_gradients(shared, own, world, max_norm):
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    for p, g in zip(shared, flat.div_(world).split([p.numel() for p in shared])):
        p.grad.copy_(g.view_as(p))
    for p in own:
        p.grad.div_(world)
    own_sq = torch.stack([p.grad.pow(2).sum() for p in own]).sum()
    dist.all_reduce(own_sq)
    total = (torch.stack([p.grad.pow(2).sum() for p in shared]).sum() + own_sq).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p in shared + own:
        p.grad.mul_(factor)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=24)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = Model(world, rank, capacity=args.batch_size)
    shared, own = split(model)
    for p in shared:
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = Mixed()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pred, balance = model(x)
            loss = F.mse_loss(pred, y) + 0.01 * balance
            opt.zero_grad()
            loss.backward()
            finish_gradients(shared, own, world, 1.0)
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
