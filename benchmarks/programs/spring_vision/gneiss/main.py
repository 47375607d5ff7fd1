"""MoCo pre-training with shuffling BN within the node.

torchrun --nproc_per_node 4 main.py --ranks-per-node 2
"""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from comm import Comm
from moco import MoCo

log = logging.getLogger("moco")


class TwoViews(Dataset):
    def __init__(self, n=3072, size=24, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.base = torch.randn(n, 3, size, size, generator=g)
        self.size = size

    def __len__(self):
        return len(self.base)

    def view(self, x):
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        dy, dx = torch.randint(-3, 4, (2,)).tolist()
        return torch.roll(x, (dy, dx), (-2, -1)) + 0.2 * torch.randn_like(x)

    def __getitem__(self, i):
        return self.view(self.base[i]), self.view(self.base[i])


def node_report(comm, epoch, loss, acc):
    """Mean over the ranks of a node, then over nodes; one line per epoch."""
    t = torch.tensor([loss, acc])
    dist.all_reduce(t, group=comm.local_group)
    t /= comm.per_node
    if comm.is_leader:
        dist.all_reduce(t, group=comm.leader_group)
        t /= comm.num_nodes
    dist.broadcast(t, src=0, group=comm.log_group)
    if comm.rank == 0:
        log.info("epoch %d loss %.4f acc %.3f", epoch, *t.tolist())
    return t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ranks-per-node", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=0.06)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    comm = Comm(args.ranks_per_node).build()
    torch.manual_seed(0)
    model = DDP(MoCo(comm), broadcast_buffers=False)
    torch.manual_seed(1000 + comm.rank)

    data = TwoViews()
    sampler = DistributedSampler(data, comm.world, comm.rank, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, losses, hits = time.time(), 0.0, 0.0
        for a, b in loader:
            loss, logits = model(a, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            losses += loss.item()
            hits += (logits.argmax(1) == 0).float().mean().item()
        node_report(comm, epoch, losses / len(loader), hits / len(loader))
        if comm.rank == 0:
            log.info("epoch time %.1fs", time.time() - t0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
