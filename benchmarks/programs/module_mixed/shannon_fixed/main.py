import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

from stream import Tape, Window

RECORDS, BATCH, WORKERS, EPOCHS = 320, 16, 2, 2


class Shuffled(IterableDataset):
    def __init__(self, tape, size=24):
        self.tape, self.size, self.epoch = tape, size, 0

    def __iter__(self):
        return iter(Window(self.tape, self.size, seed=self.epoch))


def clip(record):
    record["x"] = record["x"].clamp(-2.5, 2.5)
    return record


class BilinearNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 96), nn.SiLU(), nn.Linear(96, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(16)
    ds = Shuffled(Tape(RECORDS, rank, world, transform=clip))
    loader = DataLoader(ds, batch_size=BATCH, num_workers=WORKERS, drop_last=True)
    model = DDP(BilinearNet())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        ds.epoch = epoch
        n = 0
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += len(batch["index"])
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} records {n}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
