"""Small image model in channels-last layout with hand-written gradient averaging."""
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Options:
    steps: int = 30
    batch: int = 12
    lr: float = 0.05
    widths: list = field(default_factory=lambda: [8, 16])
    seed: int = 14


class Tiny(nn.Module):
    def __init__(self, widths, classes=4):
        super().__init__()
        layers, last = [], 3
        for w in widths:
            layers += [nn.Conv2d(last, w, 3, padding=1, bias=False), nn.GroupNorm(4, w), nn.ReLU(), nn.AvgPool2d(2)]
            last = w
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(last, classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class Averager:
    """Averages gradients over all ranks, biggest first."""

    def __init__(self, model):
        self.params = sorted(model.parameters(), key=lambda p: -p.numel())
        self.world = dist.get_world_size()

    def __call__(self):
        for p in self.params:
            buf = p.grad.contiguous()
            dist.all_reduce(buf, op=dist.ReduceOp.SUM)
            buf.div_(self.world)


def synthetic(gen, n):
    label = torch.randint(0, 4, (n,), generator=gen)
    x = 0.5 * torch.randn(n, 3, 16, 16, generator=gen)
    x[torch.arange(n), label % 3, :8] += 0.8
    x[:, :, 8:, 8:] += (label == 3).float().view(-1, 1, 1, 1)
    return x.to(memory_format=torch.channels_last), label


def sync_initial(model):
    for t in list(model.parameters()) + list(model.buffers()):
        tmp = t.detach().contiguous()
        dist.broadcast(tmp, src=0)
        t.data.copy_(tmp)


def main():
    opt = Options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(opt.seed + rank)
    model = Tiny(opt.widths).to(memory_format=torch.channels_last)
    sync_initial(model)
    average = Averager(model)
    optim = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=0.9, nesterov=True)
    gen = torch.Generator().manual_seed(opt.seed * 7 + rank)
    begin = time.perf_counter()
    for step in range(1, opt.steps + 1):
        x, y = synthetic(gen, opt.batch)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        average()
        optim.step()
        if step % 10 == 0 and rank == 0:
            acc = (out.argmax(1) == y).float().mean().item()
            print(f"{step:3d} loss {loss.item():.3f} acc {acc:.2f} {time.perf_counter() - begin:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
