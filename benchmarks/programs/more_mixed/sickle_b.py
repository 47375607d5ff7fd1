"""Draft-head training on spans cut around anchor positions."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

logger = logging.getLogger("sickle")
BLOCK = 4


class NoAnchors(ValueError):
    """Every sequence in the micro-batch is shorter than a block."""


class Docs(Dataset):
    def __init__(self, n, vocab, seed=8):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            length = int(torch.randint(6, 20, (1,), generator=g))
            if i % 97 in (33, 35):
                length = 3
            self.rows.append(torch.randint(1, vocab, (length,), generator=g))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    out = torch.zeros(len(rows), 20, dtype=torch.long)
    for i, r in enumerate(rows):
        out[i, : len(r)] = r
    return out, torch.tensor([len(r) for r in rows])


class Draft(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mix = nn.GRU(d, d, batch_first=True)
        self.heads = nn.Linear(d, BLOCK * vocab)
        self.vocab = vocab

    def forward(self, ids):
        h, _ = self.mix(self.emb(ids))
        return self.heads(h).view(*ids.shape, BLOCK, self.vocab)


def pick_anchors(ids, lens):
    anchors = [(b, t) for b, n in enumerate(lens.tolist()) for t in range(n - BLOCK)]
    if not anchors:
        raise NoAnchors
    return torch.tensor(anchors)


def compute_loss(model, ids, anchors):
    logits = model(ids)[anchors[:, 0], anchors[:, 1]]
    target = torch.stack([ids[b, t + 1: t + 1 + BLOCK] for b, t in anchors.tolist()])
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def prepare(ids, lens):
    try:
        anchors = pick_anchors(ids, lens)
    except NoAnchors:
        anchors = None
    usable = torch.tensor(int(anchors is not None))
    return anchors, bool(usable)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=96)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=30)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ds = Docs(args.docs, args.vocab)
    sampler = DistributedSampler(ds, shuffle=False)
    loader = DataLoader(ds, batch_size=2, sampler=sampler, collate_fn=collate)
    model = DDP(Draft(args.vocab))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    done = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, lens in loader:
            anchors, ok = prepare(ids, lens)
            if not ok:
                logger.warning("rank %d: no usable anchors, skipping", dist.get_rank())
                continue
            loss = compute_loss(model, ids, anchors)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
        if dist.get_rank() == 0:
            logger.info("epoch %d steps %d loss %.4f", epoch, done, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
