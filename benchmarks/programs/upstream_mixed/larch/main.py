"""Low-communication data-parallel training: local AdamW steps, an outer step every eight."""
import datetime

import torch
import torch.distributed as dist
from torch import nn

from outer import OuterOptimizer

STEPS, PERIOD = 48, 8


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = OuterOptimizer(model.parameters(), PERIOD)
    gen = torch.Generator().manual_seed(70 + rank)
    for step in range(1, STEPS + 1):
        x = torch.randn(32, 20, generator=gen)
        y = (x[:, :5].sum(1, keepdim=True)).sin()
        loss = nn.functional.mse_loss(model(x), y)
        inner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()
        if outer.maybe_step(step):
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
