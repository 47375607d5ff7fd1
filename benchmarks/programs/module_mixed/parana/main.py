import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import ShardStream

SIZES = [40, 56, 31, 64, 48, 22, 57]
EPOCHS, BATCH = 3, 8


def agreed(batches):
    """Goes on as long as every rank still has a batch; what is left over is dropped on all ranks."""
    it = iter(batches)
    while True:
        batch = next(it, None)
        more = torch.tensor(int(batch is not None))
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more:
            return
        yield batch


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    stream = ShardStream(SIZES, rank, world)
    loader = DataLoader(stream, batch_size=BATCH, num_workers=1)
    for epoch in range(EPOCHS):
        stream.set_epoch(epoch)
        n = 0
        for x, y, _ in agreed(loader):
            loss = (model(x) - y).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
        if rank == 0:
            print(f"epoch {epoch} steps {n} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
