"""Masked-item encoder over user histories of very different length."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from sampling import LengthSortedSampler

log = logging.getLogger("histories")


class Histories(Dataset):
    def __init__(self, n, items, max_len, seed=0):
        g = torch.Generator().manual_seed(seed)
        raw = torch.empty(n).log_normal_(3.6, 0.8, generator=g)
        self.lengths = raw.clamp(8, max_len).long().tolist()
        self.rows = [((torch.arange(l) * int(torch.randint(1, 5, (), generator=g))
                       + int(torch.randint(0, items, (), generator=g))) % items) + 2 for l in self.lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = pad_sequence(rows, batch_first=True)
    mask = (torch.rand(ids.shape) < 0.15) & (ids > 0)
    mask[:, 0] |= ~mask.any(1)
    return ids.masked_fill(mask, 1), ids, mask


class Encoder(nn.Module):
    def __init__(self, items, dim, depth):
        super().__init__()
        self.emb = nn.Embedding(items + 2, dim, padding_idx=0)
        self.pos = nn.Embedding(512, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, items + 2)

    def forward(self, ids, mask):
        h = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        h = self.enc(h, src_key_padding_mask=ids == 0)
        return self.head(h[mask])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=1920)
    ap.add_argument("--items", type=int, default=800)
    ap.add_argument("--max-len", type=int, default=256)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=1)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    data = Histories(args.users, args.items, args.max_len)
    sampler = LengthSortedSampler(data.lengths, args.batch_size, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DDP(Encoder(args.items, args.dim, args.depth))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)

    step, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, target, mask in loader:
            logits = model(ids, mask)
            # global mean over masked items: scale by the share of this rank
            count = mask.sum().float()
            total = count.clone()
            dist.all_reduce(total)
            loss = F.cross_entropy(logits, target[mask], reduction="sum") * world / total
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0:
                if rank == 0:
                    log.info("step %d loss %.4f %.0f ms/step", step, loss.item() * total.item() / world / count.item(),
                             50 * (time.perf_counter() - t0))
                t0 = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
