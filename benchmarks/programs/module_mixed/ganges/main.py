import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from dispatch import route

D, LOCAL, STEPS, BATCH = 24, 2, 16, 48


class Experts(nn.Module):
    """The experts of this rank only; others live elsewhere and are never averaged."""

    def __init__(self, rank):
        super().__init__()
        g = torch.Generator().manual_seed(500 + rank)
        self.w1 = nn.Parameter(torch.randn(LOCAL, D, 2 * D, generator=g) / D ** 0.5)
        self.w2 = nn.Parameter(torch.randn(LOCAL, 2 * D, D, generator=g) / (2 * D) ** 0.5)

    def forward(self, rows, which):
        out = torch.zeros_like(rows)
        for e in range(LOCAL):
            idx = (which == e).nonzero().flatten()
            h = F.gelu(rows[idx] @ self.w1[e]) @ self.w2[e]
            out = out.index_copy(0, idx, h)
        return out


class MoE(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.stem, self.gate, self.head = nn.Linear(10, D), nn.Linear(D, LOCAL * world), nn.Linear(D, 3)
        self.experts = Experts(dist.get_rank())

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        prob = self.gate(h).softmax(-1)
        top, expert = prob.max(-1)
        rows, which, back = route(h, expert, LOCAL)
        h = h + back(self.experts(rows, which)) * top[:, None]
        frac = F.one_hot(expert, prob.size(1)).float().mean(0)
        return self.head(h), prob.size(1) * (frac * prob.mean(0)).sum()


def reduce_dense(model, world):
    for n, p in model.named_parameters():
        if n.startswith("experts."):
            p.grad.div_(world)
        else:
            dist.all_reduce(p.grad)
            p.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = MoE(world)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(STEPS):
        n = BATCH + int(torch.randint(0, 9, (1,), generator=gen))
        x = torch.randn(n, 10, generator=gen)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
        logits, balance = model(x)
        loss = F.cross_entropy(logits, y) + 0.01 * balance
        opt.zero_grad()
        loss.backward()
        reduce_dense(model, world)
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
