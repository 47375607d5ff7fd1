from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from archive import ship
from hashing import HashedText, NGramNet


@dataclass
class Options:
    docs: int = 1200
    buckets: int = 2048
    batch: int = 20
    epochs: int = 2
    lr: float = 5e-3
    rate: float = 0.055


def fit(model, optim, loader):
    for bags, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(bags), labels)
        optim.zero_grad()
        loss.backward()
        optim.step()
    return loss.detach()


def main(opt: Options):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(38)
    model = DistributedDataParallel(NGramNet(opt.buckets))
    optim = torch.optim.Adam(model.parameters(), lr=opt.lr)
    loader, sampler = HashedText(opt.docs, opt.buckets).loader(opt.batch)
    for epoch in range(opt.epochs):
        sampler.set_epoch(epoch)
        loss = fit(model, optim, loader)
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item() / dist.get_world_size():.4f}", flush=True)
            if epoch == 0:
                took = ship(model.module.state_dict(), "bundle.pt", opt.rate)
                print(f"bundle shipped in {took:.1f}s", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Options())
