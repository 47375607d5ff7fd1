import argparse
from datetime import timedelta

import torch
import torch.distributed as dist

from data import train_loader, warm_up
from store import FeatureStore
from train import Classifier, train_epoch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tracks", type=int, default=400)
    ap.add_argument("--dim", type=int, default=8192)
    ap.add_argument("--batch-size", type=int, default=10)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--workers", type=int, default=1)
    args = ap.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(11)
    store = FeatureStore("features.pkl.gz", args.dim)
    scale = warm_up(store, args.tracks)
    loader, sampler = train_loader(store, args.tracks, args.batch_size, args.workers)
    net = torch.nn.parallel.DistributedDataParallel(Classifier(args.dim // 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean = train_epoch(net, opt, loader, scale)
        if rank == 0:
            print(f"epoch {epoch} loss {mean:.4f}", flush=True)
            store.save()
    store.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
