import argparse
import itertools
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from graph import Graph
from loader import build_loader


class SAGE(nn.Module):
    def __init__(self, feats, hidden, classes):
        super().__init__()
        self.self1, self.neigh1 = nn.Linear(feats, hidden), nn.Linear(feats, hidden, bias=False)
        self.self2, self.neigh2 = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, classes)

    def layer1(self, x, neigh):
        return F.relu(self.self1(x) + self.neigh1(neigh.mean(-2)))

    def forward(self, root, hop1, hop2):
        h_root = self.layer1(root, hop1)
        h_hop1 = self.layer1(hop1, hop2)
        h = F.relu(self.self2(h_root) + self.neigh2(h_hop1.mean(-2)))
        return self.out(F.dropout(h, 0.3, self.training))


def main():
    p = argparse.ArgumentParser("GraphSAGE with sampled neighbourhoods")
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--fanouts", type=int, nargs=2, default=[6, 4])
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--hidden", type=int, default=96)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=42)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    graph = Graph()
    loader = build_loader(graph, args.batch_size, args.fanouts, args.workers, args.seed)
    model = DDP(SAGE(graph.x.shape[1], args.hidden, graph.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    torch.manual_seed(args.seed + rank)

    running = None
    for step, (root, hop1, hop2, y) in enumerate(itertools.islice(loader, args.steps)):
        logits = model(root, hop1, hop2)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        acc = (logits.argmax(-1) == y).float().mean().item()
        running = acc if running is None else 0.9 * running + 0.1 * acc
        if step % 20 == 0:
            logging.info("step %d loss %.4f acc %.3f", step, loss.item(), running)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
