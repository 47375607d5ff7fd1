import argparse

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from sites import site_loader
from risk import RiskNet


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(21)
    model = DDP(RiskNet(args.features))
    optim = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loader = site_loader(rank, args.features, args.batch)
    for epoch in range(args.epochs):
        seen, total = 0, 0.0
        with Join([model]):
            for x, y in loader:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
                optim.zero_grad()
                loss.backward()
                optim.step()
                seen += len(y)
                total += loss.item() * len(y)
        stats = torch.tensor([total, float(seen)])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} loss {(stats[0] / stats[1]).item():.4f} rows {int(stats[1])}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--features", type=int, default=16)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.barrier()
    dist.destroy_process_group()
