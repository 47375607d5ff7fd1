"""Regression trained with hybrid sharding: two replicas of two shards each."""
import datetime

import torch
import torch.distributed as dist

from clip import clip_grad_norm
from model import Net
from parallel import build_mesh, parallelize

STEPS = 30
MAX_NORM = 0.5


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    mesh = build_mesh(shard_size=2)
    torch.manual_seed(11)
    model = parallelize(Net(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(500 + rank)
    teacher = torch.linspace(-2, 2, 32)
    for step in range(STEPS):
        x = torch.randn(16, 32, generator=gen)
        y = (x @ teacher) + 0.1 * torch.randn(16, generator=gen)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm(model, mesh, MAX_NORM)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} grad norm {norm.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
