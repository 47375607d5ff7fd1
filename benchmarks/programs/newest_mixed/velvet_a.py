import torch
import torch.distributed as dist
import torch.nn as nn


class LossScale:
    def __init__(self, init=2.0**12, growth=2.0, backoff=0.5, interval=20):
        self.value, self.growth, self.backoff, self.interval = init, growth, backoff, interval
        self.good = 0

    def update(self, overflow):
        if overflow:
            self.value *= self.backoff
            self.good = 0
        else:
            self.good += 1
            if self.good % self.interval == 0:
                self.value *= self.growth


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(24, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.c(torch.tanh(self.b(h))).squeeze(-1)


class MixedOptimizer:
    def __init__(self, model, lr):
        self.params = [p for p in model.parameters()]
        for p in self.params:
            dist.broadcast(p.data, 0)
        self.inner = torch.optim.AdamW(self.params, lr=lr)
        self.scale = LossScale()

    def backward(self, loss):
        self.inner.zero_grad()
        (loss * self.scale.value).backward()
        for p in self.params:
            p.grad = p.grad.half().float()

    def _overflow(self):
        bad = torch.tensor([float(not all(torch.isfinite(p.grad).all() for p in self.params))])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        return bool(bad.item())

    def step(self):
        overflow = self._overflow()
        for p in self.params:
            g = p.grad.float() / self.scale.value
            g = torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0)
            dist.all_reduce(g)
            p.grad = g / dist.get_world_size()
        if not overflow:
            self.inner.step()
        self.scale.update(overflow)
        return overflow


def batch(g, w, rank, step):
    x = torch.randn(32, 24, generator=g)
    y = (x @ w).tanh() * 2
    if step % 17 == 3 * rank:
        y = y + 40 * torch.randn(32, generator=g)
    return x, y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Regressor()
    opt = MixedOptimizer(model, 2e-3)
    g = torch.Generator().manual_seed(50 + rank)
    w = torch.randn(24, generator=torch.Generator().manual_seed(9)) * 0.3
    skipped = 0
    for step in range(250):
        x, y = batch(g, w, rank, step)
        loss = (model(x) - y).pow(2).mean()
        opt.backward(loss)
        skipped += opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {opt.scale.value}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
