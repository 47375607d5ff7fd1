import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from compression import TopKState, topk_hook

logger = logging.getLogger("topk")


def get_args():
    p = argparse.ArgumentParser(description="sparsified data-parallel training")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--ratio", type=float, default=0.05)
    p.add_argument("--lr", type=float, default=0.15)
    p.add_argument("--out", default=None)
    return p.parse_args()


def regression_data(n=2049, dim=200):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 32, generator=g) / dim ** 0.5
    v = torch.randn(32, 12, generator=g)
    return TensorDataset(x, (torch.relu(x @ w) @ v + 0.5 * torch.randn(n, 12, generator=g)).argmax(1))


def main():
    args = get_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(200, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 12))
    model = DDP(net, bucket_cap_mb=0.5)
    state = TopKState(ratio=args.ratio)
    model.register_comm_hook(state, topk_hook)
    # momentum correction is left to the residual, so plain SGD
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.0)
    ds = regression_data()
    # the last, ragged batch is padded by the sampler as usual
    sampler = DistributedSampler(ds, world, rank, shuffle=True, seed=1)
    loader = DataLoader(ds, args.batch_size, sampler=sampler)
    torch.manual_seed(rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, total, n = time.time(), 0.0, 0
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total, n = total + loss.item() * len(y), n + len(y)
        logger.info("rank %d epoch %d loss %.4f residual %.4f %.1fs", rank, epoch, total / n, state.residual_norm(), time.time() - t0)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
