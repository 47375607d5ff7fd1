import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import Deep
from parallel import GradAverager

STEPS, BATCH = 24, 32


def stream(rank):
    g = torch.Generator().manual_seed(33 + rank)
    while True:
        x = torch.randn(BATCH, 8, generator=g)
        yield x, (x[:, :1] * x[:, 1:2]).sin()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(20)
    model = Deep()
    averager = GradAverager(model)
    averager.broadcast()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = stream(rank)
    for step in range(STEPS):
        x, y = next(data)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        averager.average()
        opt.step()
        if step % 6 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
