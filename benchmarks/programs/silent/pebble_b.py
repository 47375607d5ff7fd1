from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MoEConfig:
    dim: int = 16
    experts_per_rank: int = 2
    classes: int = 8
    batch: int = 12
    steps: int = 32
    lr: float = 0.3
    clip: float = 0.25


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]


class AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class ExpertParallelFFN(nn.Module):
    def __init__(self, cfg, rank, world):
        super().__init__()
        self.rank, self.world, self.cfg = rank, world, cfg
        total = cfg.experts_per_rank * world
        self.gate = nn.Linear(cfg.dim, total, bias=False)
        gen = torch.Generator().manual_seed(900 + rank)
        self.experts = nn.ModuleList()
        for _ in range(cfg.experts_per_rank):
            expert = nn.Sequential(nn.Linear(cfg.dim, 32), nn.GELU(), nn.Linear(32, cfg.dim))
            for p in expert.parameters():
                p.data = torch.randn(p.shape, generator=gen) * 0.2
                p.is_expert = True
            self.experts.append(expert)

    def forward(self, x):
        n = x.shape[0]
        tokens = torch.cat(Gather.apply(x))
        probs = self.gate(tokens).softmax(-1)
        first = self.rank * self.cfg.experts_per_rank
        out = sum(probs[:, first + i, None] * e(tokens) for i, e in enumerate(self.experts))
        out = AllSum.apply(out)
        return x + out[self.rank * n:(self.rank + 1) * n]


class Net(nn.Module):
    def __init__(self, cfg, rank, world):
        super().__init__()
        torch.manual_seed(2)
        self.stem = nn.Linear(10, cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.classes)
        self.moe = ExpertParallelFFN(cfg, rank, world)

    def forward(self, x):
        return self.head(self.moe(F.relu(self.stem(x))))


def split_params(net):
    expert = [p for p in net.parameters() if getattr(p, "is_expert", False)]
    dense = [p for p in net.parameters() if not getattr(p, "is_expert", False)]
    return dense, expert


def reduce_gradients(dense, expert, world):
    for p in dense:
        dist.all_reduce(p.grad)
        p.grad.div_(world)
    for p in expert:
        p.grad.div_(world)


def clip_gradients(dense, expert, max_norm, world):
    dense_sq = sum(p.grad.pow(2).sum() for p in dense)
    expert_sq = sum(p.grad.pow(2).sum() for p in expert)
    total_norm = (dense_sq + expert_sq).sqrt() / world
    dist.all_reduce(total_norm)
    coef = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for p in dense + expert:
        p.grad.mul_(coef)
    return total_norm


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = MoEConfig()
    net = Net(cfg, rank, world)
    dense, expert = split_params(net)
    opt = torch.optim.SGD([{"params": dense}, {"params": expert}], lr=cfg.lr)
    data_gen = torch.Generator().manual_seed(40 + rank)
    teacher = torch.randn(10, cfg.classes, generator=torch.Generator().manual_seed(6))
    for step in range(cfg.steps):
        x = torch.randn(cfg.batch, 10, generator=data_gen)
        y = (x @ teacher).argmax(1)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        reduce_gradients(dense, expert, world)
        norm = clip_gradients(dense, expert, cfg.clip, world)
        opt.step()
        if step % 8 == 7 and rank == 0:
            print(f"step {step} loss {loss.item():.3f} grad norm {norm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
