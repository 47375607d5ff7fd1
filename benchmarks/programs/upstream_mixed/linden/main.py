"""Mixture of experts with one expert on each process and shared trunk."""
import datetime

import torch
import torch.distributed as dist
from torch import nn

from experts import ExpertParallel, reduce_gradients


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(10, width)
        self.moe = ExpertParallel(width, 64)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.moe(torch.tanh(self.inp(x))))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(90 + rank)
    for step in range(40):
        x = torch.randn(48, 10, generator=gen)
        y = torch.where(x[:, :1] > 0, x[:, 1:2] * 2, -x[:, 2:3])
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model)
        optimizer.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
