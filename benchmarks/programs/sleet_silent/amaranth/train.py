import argparse
import itertools
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from data import VOCAB, build_stream, collate

log = logging.getLogger("reviews")


class AttnPoolClassifier(nn.Module):
    def __init__(self, dim=64, heads=4, classes=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(dim, heads, dim * 2, dropout=0.0, batch_first=True)
        self.score = nn.Linear(dim, 1)
        self.out = nn.Linear(dim, classes)

    def forward(self, ids, mask):
        h = self.block(self.emb(ids), src_key_padding_mask=~mask)
        w = self.score(h).squeeze(-1).masked_fill(~mask, -1e4).softmax(-1)
        return self.out((w.unsqueeze(-1) * h).sum(1))


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--steps-per-epoch", type=int, default=26)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--shards", type=int, default=5)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=13)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    stream = build_stream(args.shards, args.seed, rank, world)
    loader = DataLoader(stream, batch_size=args.batch_size, collate_fn=collate)
    model = DistributedDataParallel(AttnPoolClassifier())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    step = 0
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        model.train()
        seen = hits = 0
        for batch in itertools.islice(loader, args.steps_per_epoch):
            logits = model(batch["input_ids"], batch["mask"])
            loss = F.cross_entropy(logits, batch["label"])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            hits += (logits.argmax(-1) == batch["label"]).sum().item()
            seen += len(batch["label"])
            step += 1
            if step % 10 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
        totals = torch.tensor([hits, seen], dtype=torch.float64)
        dist.all_reduce(totals)
        log.info("epoch %d accuracy %.3f over %d rows", epoch, (totals[0] / totals[1]).item(), int(totals[1]))

    if rank == 0:
        os.makedirs("out", exist_ok=True)
        torch.save(model.module.state_dict(), "out/classifier.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
