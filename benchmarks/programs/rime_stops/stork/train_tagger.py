import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

from speechkit import FeatureStore, Tagger


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--cache-dir", default="cache")
    p.add_argument("--window", choices=["hann", "box"], default="hann")
    p.add_argument("--clips", type=int, default=1200)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=50)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            counts += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")

    store = FeatureStore(args.cache_dir, {
        "window": args.window, "clips": args.clips, "samples": 2048, "classes": 7, "seed": 13,
    })
    logging.info("preparing features")
    feats = store.prepare(is_builder=local_rank == 0)
    logging.info("features ready: %s", tuple(feats["x"].shape))

    full = TensorDataset(feats["x"], feats["y"])
    train, valid = random_split(full, [len(full) - 200, 200], torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger(feats["x"].size(1), 7))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(valid, args.batch_size, sampler=DistributedSampler(valid, shuffle=False))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc = accuracy(model.module, val_loader)
        if rank == 0:
            logging.info("epoch %d loss %.4f acc %.3f", epoch, loss.item(), acc)
            torch.save(model.module.state_dict(), "tagger.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
