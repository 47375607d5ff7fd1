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

from curriculum import PacedSampler, Sentences, build_loader
from lexicon import write_lexicon


class Classifier(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(501, dim, padding_idx=500)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        m = (ids != 500).float()[..., None]
        return self.out((h * m).sum(1) / m.sum(1))


def pace(window, windows, n, start=0.2):
    """Root pacing function of competence-based curricula."""
    c = min(1.0, ((1 - start ** 2) * window / (windows - 1) + start ** 2) ** 0.5)
    return max(1, int(c * n))


def train_window(model, optimizer, loader):
    loss = None
    for ids, y in loader:
        loss = F.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser("curriculum learning")
    p.add_argument("--windows", type=int, default=8, help="pacing updates during training")
    p.add_argument("--samples-per-window", type=int, default=256)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--sentences", type=int, default=6000)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"curriculum-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(9)
    path = os.path.join(args.out, "lexicon.json")
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        write_lexicon(path)
    dist.barrier()
    dataset = Sentences(args.sentences, path)
    model = DDP(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for window in range(args.windows):
        tick = time.time()
        sampler = PacedSampler(pace(window, args.windows, len(dataset)), args.samples_per_window, rank, world, window)
        loader = build_loader(dataset, sampler, args.batch_size, args.workers)
        loss = train_window(model, optimizer, loader)
        logging.info("window %d pace %d loss %.4f %.2fs", window, sampler.limit, loss, time.time() - tick)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
