import argparse
import logging
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from store import BackgroundStore

log = logging.getLogger("train")


@dataclass
class Config:
    n: int = 1600
    inputs: int = 30
    hidden: int = 96
    batch: int = 40
    epochs: int = 3
    lr: float = 2e-3
    save_epochs: tuple = (0, 2)
    seconds_per_mb: float = 36.0
    seed: int = 131


def data_for(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.n, cfg.inputs, generator=g)
    y = (x[:, :5].sum(1) > 0).long() + (x[:, 5:10].sum(1) > 0).long()
    return TensorDataset(x, y)


def average(params, world):
    grads = [p.grad for p in params]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= world
    for g, new in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        g.copy_(new)


def state_for(rank, model, opt, epoch):
    """Rank 0 keeps weights and moments, the others only their random state."""
    state = {"epoch": epoch, "rng": torch.get_rng_state()}
    if rank == 0:
        state["model"] = model.state_dict()
        state["opt"] = opt.state_dict()
    return state


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seconds-per-mb", type=float, default=36.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"%(asctime)s r{rank} %(name)s %(message)s")
    cfg = Config(epochs=args.epochs, seconds_per_mb=args.seconds_per_mb)
    torch.manual_seed(cfg.seed)
    data = data_for(cfg)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    model = nn.Sequential(nn.Linear(cfg.inputs, cfg.hidden), nn.ReLU(),
                          nn.Linear(cfg.hidden, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    box = [tempfile.mkdtemp(prefix="bg_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    store = BackgroundStore(box[0], cfg.seconds_per_mb)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            average(list(model.parameters()), world)
            opt.step()
            total += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(total)
        log.info("epoch %d loss %.4f", epoch, total[0] / total[1])
        if epoch in cfg.save_epochs:
            store.put(epoch, state_for(rank, model, opt, epoch))
    last = store.close()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    log.info("last safe epoch %s, spread of weights %.1e", last, (high - low).max().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
