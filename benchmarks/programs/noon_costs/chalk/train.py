import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from gcn import GCN


def citation_graph(nodes, degree, classes, features, seed=0):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (nodes,), generator=g)
    order = torch.argsort(label)
    src = torch.arange(nodes).repeat_interleave(degree)
    step = torch.randint(1, nodes // classes, (len(src),), generator=g)
    dst = (src + step) % nodes
    edge_index = torch.stack([order[src], order[dst]])
    x = torch.randn(classes, features, generator=g)[label] + 3 * torch.randn(nodes, features, generator=g)
    return x, edge_index, label


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nodes", type=int, default=12000)
    ap.add_argument("--degree", type=int, default=8)
    ap.add_argument("--classes", type=int, default=12)
    ap.add_argument("--features", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--seeds-per-step", type=int, default=2000)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, edge_index, y = citation_graph(args.nodes, args.degree, args.classes, args.features)
    torch.manual_seed(10)
    model = DDP(GCN(args.features, args.hidden, args.classes))
    torch.manual_seed(100 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    split = torch.randperm(args.nodes, generator=torch.Generator().manual_seed(1))
    train_idx, test_idx = split[: int(0.8 * args.nodes)][rank::world], split[int(0.8 * args.nodes):]
    pick = torch.Generator().manual_seed(200 + rank)
    t0 = time.time()
    for step in range(1, args.steps + 1):
        model.train()
        seeds = train_idx[torch.randperm(len(train_idx), generator=pick)[: args.seeds_per_step]]
        loss = F.cross_entropy(model(x, edge_index)[seeds], y[seeds])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                part = test_idx[rank::world]
                hits = (model.module(x, edge_index)[part].argmax(1) == y[part]).sum()
            dist.all_reduce(hits)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} test acc {hits.item() / len(test_idx):.4f} "
                      f"{step / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
