"""Optimizer state partitioned by parameter: reduce each gradient to its owner, step there, send the weights back."""
import torch
import torch.distributed as dist
from torch import nn


class PartitionedAdam:
    def __init__(self, params, lr, rank, world):
        self.params = list(params)
        self.rank, self.world = rank, world
        size = [0] * world
        self.owner = []
        for p in self.params:
            r = min(range(world), key=lambda i: size[i])
            size[r] += p.numel()
            self.owner.append(r)
        self.mine = [p for p, o in zip(self.params, self.owner) if o == rank]
        self.opt = torch.optim.Adam(self.mine, lr=lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def clip(self, max_norm):
        sq = sum((p.grad.norm() ** 2 for p in self.mine), torch.zeros(()))
        dist.all_reduce(sq)
        coef = (max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0)
        for p in self.mine:
            p.grad.mul_(coef)
        return sq.sqrt()

    def reduce_gradients(self):
        handles = []
        for p, o in zip(self.params, self.owner):
            p.grad.div_(self.world)
            handles.append((dist.reduce(p.grad, dst=o, async_op=True), p, o))
        for h, p, o in handles:
            h.wait()
            if o != self.rank:
                p.grad = None

    @torch.no_grad()
    def step(self):
        self.opt.step()
        handles = [dist.broadcast(p.data, src=o, async_op=True) for p, o in zip(self.params, self.owner)]
        for h in handles:
            h.wait()


class ConvMixer(nn.Module):
    def __init__(self, dim=24, depth=3, classes=6):
        super().__init__()
        self.stem = nn.Conv2d(1, dim, 4, 4)
        self.mix = nn.ModuleList(nn.ModuleList([nn.Conv2d(dim, dim, 3, padding=1, groups=dim), nn.Conv2d(dim, dim, 1),
                                                nn.GroupNorm(4, dim)]) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.stem(x)
        for dw, pw, norm in self.mix:
            h = h + norm(nn.functional.gelu(dw(h)))
            h = nn.functional.gelu(pw(h))
        return self.head(h.mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = ConvMixer()
    opt = PartitionedAdam(model.parameters(), 2e-3, rank, world)
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(50):
        y = torch.randint(0, 6, (16,), generator=gen)
        x = torch.randn(16, 1, 24, 24, generator=gen) + (y.view(-1, 1, 1, 1) - 3) * 0.4
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.reduce_gradients()
        norm = opt.clip(1.0)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"{step:3d} loss {loss.item():.3f} norm {norm.item():.2f}", flush=True)
    shards = [None] * world if rank == 0 else None
    dist.gather_object({k: v for k, v in opt.opt.state_dict().items()}, shards, dst=0)
    if rank == 0:
        print("optimizer shards", [len(s["state"]) for s in shards])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
