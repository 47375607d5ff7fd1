"""Training from a shuffled stream of shards."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import ShardStream


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dataset = ShardStream(shards=32, seed=5)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=12, num_workers=2)
        total, count = 0.0, 0
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
        if rank == 0:
            print(f"epoch {epoch}: {count} batches, loss {total / count:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
