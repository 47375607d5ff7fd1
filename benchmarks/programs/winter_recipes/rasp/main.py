import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from model import RankingModel
from parallel import HybridParallel

CONFIG = {
    "users": 4000,
    "items": 3000,
    "ddp_exclude": ["embedding."],
    "bucket_cap_mb": 4,
    "batch_size": 256,
    "epochs": 2,
    "lr_dense": 2e-3,
    "lr_sparse": 1e-3,
}


def click_log(n, users, items, content_dim=48, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(4)
    taste = torch.randn(users, 8, generator=w)
    topic = torch.randn(items, 8, generator=w)
    to_content = torch.randn(8, content_dim, generator=w) / 8 ** 0.5
    content = topic @ to_content + 0.2 * torch.randn(items, content_dim, generator=w)
    u = torch.randint(users, (n,), generator=g)
    i = (torch.rand(n, generator=g) ** 2 * items).long()
    p = torch.sigmoid((taste[u] * topic[i]).sum(-1) / 2)
    return TensorDataset(u, i, content[i], (torch.rand(n, generator=g) < p).float())


@torch.no_grad()
def evaluate(model, data):
    """Log loss over the held-out clicks, split over the processes."""
    u, i, c, y = (t[dist.get_rank() :: dist.get_world_size()] for t in data.tensors)
    stats = torch.tensor([F.binary_cross_entropy_with_logits(model(u, i, c), y, reduction="sum").item(), len(y)])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clicks", type=int, default=30000)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    cfg = CONFIG
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)

    train = click_log(args.clicks, cfg["users"], cfg["items"])
    test = click_log(4000, cfg["users"], cfg["items"], seed=1)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, cfg["batch_size"], sampler=sampler, drop_last=True)
    parallel = HybridParallel(RankingModel(cfg["users"], cfg["items"]), cfg)
    dense_opt = torch.optim.Adam(parallel.dense_parameters(), lr=cfg["lr_dense"])
    table_opt = torch.optim.SparseAdam(parallel.table_parameters(), lr=cfg["lr_sparse"])

    for epoch in range(cfg["epochs"]):
        sampler.set_epoch(epoch)
        for step, (user, item, content, click) in enumerate(loader):
            loss = F.binary_cross_entropy_with_logits(parallel(user, item, content), click)
            dense_opt.zero_grad()
            table_opt.zero_grad()
            loss.backward()
            parallel.reduce_tables()
            dense_opt.step()
            table_opt.step()
            if step % 20 == 0:
                logging.info("epoch %d step %d logloss %.4f", epoch, step, loss.item())
        logging.info("epoch %d test logloss %.4f", epoch, evaluate(parallel.module, test))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
