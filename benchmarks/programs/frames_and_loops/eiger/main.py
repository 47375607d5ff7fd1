import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from loader import PrefetchLoader, TokenBatcher

log = logging.getLogger("textclf")


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--sentences", type=int, default=800)
    p.add_argument("--vocab", type=int, default=200)
    p.add_argument("--classes", type=int, default=4)
    p.add_argument("--budget", type=int, default=512)
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--out", default="out_eiger")
    return p.parse_args()


class Sentences:
    def __init__(self, args):
        g = torch.Generator().manual_seed(args.seed)
        self.lengths = (4 + torch.rand(args.sentences, generator=g).pow(3) * 60).long().tolist()
        topics = torch.softmax(2.0 * torch.randn(args.classes, args.vocab - 1, generator=g), -1)
        self.labels = torch.randint(0, args.classes, (args.sentences,), generator=g)
        self.items = [1 + torch.multinomial(topics[c], n, replacement=True, generator=g)
                      for c, n in zip(self.labels.tolist(), self.lengths)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.labels[i]


class Classifier(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.emb = nn.Embedding(args.vocab, args.dim, padding_idx=0)
        self.rnn = nn.GRU(args.dim, args.dim, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.LayerNorm(2 * args.dim), nn.Linear(2 * args.dim, args.classes))

    def forward(self, tokens):
        mask = tokens.ne(0).unsqueeze(-1).float()
        h, _ = self.rnn(self.emb(tokens))
        pooled = (h * mask).sum(1) / mask.sum(1).clamp_min(1)
        return self.out(pooled)


def train_epoch(model, loader, opt, epoch):
    loader.set_epoch(epoch)
    stats = torch.zeros(3)
    for tokens, labels in loader:
        logits = model(tokens)
        loss = F.cross_entropy(logits, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        stats += torch.tensor([loss.item() * len(labels), logits.argmax(1).eq(labels).sum().item(), len(labels)])
    return stats


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = Sentences(args)
    loader = PrefetchLoader(data, TokenBatcher(data.lengths, args.budget), rank, world, seed=args.seed)
    model = DDP(Classifier(args))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        t0 = time.time()
        stats = train_epoch(model, loader, opt, epoch)
        dist.all_reduce(stats)
        log.info("epoch %d loss %.4f acc %.3f sentences %d (%.1fs)", epoch, stats[0] / stats[2],
                 stats[1] / stats[2], int(stats[2]), time.time() - t0)
        for group in opt.param_groups:
            group["lr"] *= 0.7
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.out, "clf.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
