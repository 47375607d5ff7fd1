"""Uneven shards handled with the Join context."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=2e-3)
    g = torch.Generator().manual_seed(rank)
    n = 1280 if rank == 0 else 736
    w = torch.linspace(-1, 1, 16)
    x = torch.randn(n, 16, generator=g)
    y = torch.tanh(x @ w).unsqueeze(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    for epoch in range(4):
        seen = 0
        with Join([model, opt]):
            for xb, yb in loader:
                loss = nn.functional.mse_loss(model(xb), yb)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += 1
        print(f"[{rank}] epoch {epoch}: {seen} batches, last loss {loss.item():.4f}", flush=True)
    for p in model.parameters():
        ref = p.detach().clone()
        dist.broadcast(ref, 0)
        assert torch.allclose(ref, p, atol=1e-6)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
