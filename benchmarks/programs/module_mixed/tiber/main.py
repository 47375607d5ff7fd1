from datetime import timedelta

import torch
import torch.distributed as dist

import parallel_state as ps
from modules import Composite, broadcast_parts, reduce_gradients

STEPS, BATCH = 16, 32


def stream(rank):
    g = torch.Generator().manual_seed(20 + rank)
    while True:
        x = torch.randn(BATCH, 10, generator=g)
        yield x, x[:, :2].prod(1, keepdim=True) + x[:, 2:3]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ps.initialize()
    torch.manual_seed(9)
    model = Composite()
    broadcast_parts(model)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    data = stream(dist.get_rank())
    for step in range(STEPS):
        x, y = next(data)
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        reduce_gradients(model)
        opt.step()
        if step % 4 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
