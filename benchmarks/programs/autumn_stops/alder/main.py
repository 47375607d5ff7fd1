import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dataset import PatchDataset
from tilecache import TileCache

log = logging.getLogger("patches")


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 36, 4),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--tiles", type=int, default=40)
    p.add_argument("--patches", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--spill-every", type=float, default=0.2)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")

    cache = TileCache(tempfile.mkdtemp(prefix=f"alder-{rank}-"), capacity=32, spill_every=args.spill_every)
    data = PatchDataset(cache, list(range(args.tiles)), args.patches)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)

    torch.manual_seed(0)
    model = DDP(build_model())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        if epoch == 2:
            # the first epochs see the tiles cold, afterwards the hot ones are kept
            data.warm(30)
            cache.start()
        sampler.set_epoch(epoch)
        stats = torch.zeros(3)
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            stats += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum(), len(y)])
        dist.all_reduce(stats)
        if rank == 0:
            log.info("epoch %d loss %.4f acc %.4f", epoch, stats[0] / stats[2], stats[1] / stats[2])
    cache.stop()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
