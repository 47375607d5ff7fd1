"""Switch-style mixture of experts, one expert per rank; tokens go out and come home with all_to_all."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        return AllToAll.apply(g)


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 4 * dim), nn.GELU(),
                                 nn.Linear(4 * dim, dim))

    def forward(self, x):
        return self.net(x)


class SwitchLayer(nn.Module):
    def __init__(self, dim, capacity=40):
        super().__init__()
        self.world = dist.get_world_size()
        self.capacity = capacity
        self.gate = nn.Linear(dim, self.world)
        self.expert = Expert(dim)
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        prob = self.gate(x).softmax(-1)
        weight, choice = prob.max(-1)
        slot = (F.one_hot(choice, self.world).cumsum(0) - 1).gather(1, choice[:, None]).squeeze(1)
        keep = slot < self.capacity
        box = x.new_zeros(self.world * self.capacity, x.size(1))
        where = choice[keep] * self.capacity + slot[keep]
        box = box.index_copy(0, where, x[keep])
        back = AllToAll.apply(self.expert(AllToAll.apply(box)))
        out = torch.zeros_like(x).index_copy(0, keep.nonzero().squeeze(1), back[where])
        frac = F.one_hot(choice, self.world).float().mean(0)
        aux = self.world * (frac * prob.mean(0)).sum()
        return x + 2 * weight[:, None] * out, aux


class Net(nn.Module):
    def __init__(self, dim=24, classes=8):
        super().__init__()
        self.inp = nn.Linear(10, dim)
        self.moe = SwitchLayer(dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h, aux = self.moe(torch.tanh(self.inp(x)))
        return self.out(self.norm(h)), aux


def split(model):
    dense = [p for p in model.parameters() if not getattr(p, "is_expert", False)]
    experts = [p for p in model.parameters() if getattr(p, "is_expert", False)]
    return dense, experts


def sync_grads(model):
    dense, experts = split(model)
    n = dist.get_world_size()
    for p in dense:
        dist.all_reduce(p.grad)
        p.grad.div_(n)
    for p in experts:
        p.grad.div_(n)


def clip_grad_norm(model, max_norm):
    dense, experts = split(model)
    total = sum((p.grad.norm() ** 2 for p in dense), torch.zeros(()))
    expert_total = sum((p.grad.norm() ** 2 for p in experts), torch.zeros(()))
    dist.all_reduce(expert_total)
    norm = (total + expert_total).sqrt()
    coef = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(coef)
    return norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--clip-grad", type=float, default=0.3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    torch.manual_seed(1 + rank)
    for m in model.moe.expert.net:
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.25)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(40 + rank)
    for step in range(args.steps):
        x = torch.randn(40, 10, generator=gen) + 0.4
        y = (x[:, 0] > 0).long() * 4 + (x[:, 1] > 0).long() * 2 + (x[:, 2] * x[:, 3] > 0).long()
        logits, aux = model(x)
        loss = F.cross_entropy(logits, y) + 0.001 * aux
        opt.zero_grad()
        loss.backward()
        sync_grads(model)
        norm = clip_grad_norm(model, args.clip_grad)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f} grad norm {norm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
