"""DDP with a bf16 wire format for the gradients and plain SGD."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("sgd")


class WireFormat:
    """State of the hook: what was sent, for the statistics at the end."""

    def __init__(self, group=None, dtype=torch.bfloat16):
        self.group = group or dist.group.WORLD
        self.dtype = dtype
        self.bytes = 0

    @property
    def size(self):
        return dist.get_world_size(self.group)


def half_width_hook(state: WireFormat, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    wire = bucket.buffer().to(state.dtype).div_(state.size)
    state.bytes += wire.numel() * wire.element_size()
    work = dist.all_reduce(wire, group=state.group, async_op=True)

    def unpack(fut):
        full = bucket.buffer()
        full.copy_(fut.value()[0])
        return full

    return work.get_future().then(unpack)


def blobs(n=1536, dim=24, classes=6, seed=13):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centers[y] + 1.2 * torch.randn(n, dim, generator=g), y)


@torch.no_grad()
def evaluate(model, data):
    x, y = data.tensors
    part = slice(dist.get_rank(), None, dist.get_world_size())
    out = model(x[part])
    stats = torch.tensor([float((out.argmax(1) == y[part]).sum()), float(len(out))])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    train, held = blobs(), blobs(n=400, seed=14)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    ddp = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)))
    state = WireFormat()
    ddp.register_comm_hook(state, half_width_hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc = evaluate(ddp.module, held)
        if rank == 0:
            log.info("epoch %d loss %.4f held-out %.3f", epoch, loss.item(), acc)
    if rank == 0:
        log.info("sent %.2f MB", state.bytes / 1e6)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
