import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from guard import CollectiveRetry, StepRejected

log = logging.getLogger("detector")


class CameraFeed:
    """Frames of one camera. The driver drops out now and then and needs some time to come back."""

    OUTAGES = {(0, 55): 1, (1, 20): 2, (1, 90): 3}

    def __init__(self, rank, dim=64):
        self.rank = rank
        self.dim = dim
        self.proto = torch.randn(6, dim, generator=torch.Generator().manual_seed(4))
        self.failed = {}

    def read(self, step, size):
        missing = self.OUTAGES.get((self.rank, step), 0)
        tries = self.failed.get(step, 0)
        if tries < missing:
            self.failed[step] = tries + 1
            raise OSError(f"camera {self.rank}: no frame for step {step}")
        gen = torch.Generator().manual_seed(step * 10 + self.rank)
        y = torch.randint(0, 6, (size,), generator=gen)
        x = self.proto[y] + 1.5 * torch.randn(size, self.dim, generator=gen)
        if not torch.isfinite(x).all():
            raise StepRejected(f"camera {self.rank}: corrupt frame in step {step}")
        return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=140)
    p.add_argument("--batch-size", type=int, default=48)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    feed = CameraFeed(rank)
    retry = CollectiveRetry()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 6)))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    began = time.time()
    for step in range(args.steps):
        x, y = retry(feed.read, step, args.batch_size)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 19:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %d loss %.4f (%.1fs)", step + 1, mean.item() / world_size, time.time() - began)
    if rank == 0:
        log.info("finished with %d repeated reads", retry.retries)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
