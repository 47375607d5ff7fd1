"""Sparse gradient exchange with error feedback: every rank keeps a residual of its own."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from hook import TopKState, topk_hook

STEPS, BATCH = 24, 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.net(x)


def stream(rank):
    g = torch.Generator().manual_seed(600 + rank)
    w = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    while True:
        x = torch.randn(BATCH, 20, generator=g)
        yield x, (x @ w).argmax(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(Net())
    state = TopKState(density=0.1)
    model.register_comm_hook(state, topk_hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    data = stream(rank)
    for step in range(STEPS):
        x, y = next(data)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 0 and rank == 0:
            held = sum(r.norm().item() for r in state.residual.values())
            print(f"step {step} loss {loss.item():.4f} residual {held:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
