import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import LengthSortedShard, synth_documents


class DocClassifier(nn.Module):
    def __init__(self, vocab, classes, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        pad = tokens == 0
        h = self.encoder(self.embed(tokens), src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(h)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--docs", type=int, default=1440)
    p.add_argument("--vocab", type=int, default=2000)
    p.add_argument("--classes", type=int, default=12)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    docs = synth_documents(args.docs, args.vocab, args.classes)
    shard = LengthSortedShard(docs, rank, world, args.batch)
    model = DDP(DocClassifier(args.vocab, args.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        t0, seen, right = time.time(), 0, 0
        for tokens, labels in shard.epoch(epoch):
            logits = model(tokens)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            right += (logits.argmax(-1) == labels).sum().item()
        totals = torch.tensor([seen, right], dtype=torch.float64)
        dist.all_reduce(totals)
        if rank == 0:
            print(f"epoch {epoch} acc {totals[1] / totals[0]:.3f} {totals[0] / (time.time() - t0):.0f} docs/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
