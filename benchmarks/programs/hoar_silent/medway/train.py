import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import LengthBatches, pad, shard, synth_documents


class DocModel(nn.Module):
    def __init__(self, vocab=200, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 192, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, x):
        mask = x == 0
        h = self.enc(self.emb(x), src_key_padding_mask=mask)
        h = h.masked_fill(mask[..., None], 0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.out(h)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=15)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    docs = synth_documents()
    data = shard(docs, rank, world)
    batches = LengthBatches(len(data), args.batch_size)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=pad)
    model = DDP(DocModel())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        batches.set_epoch(epoch)
        t0, tokens, total = time.time(), 0, 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tokens += int((x != 0).sum())
            total += loss.item()
        stat = torch.tensor([total / len(loader), float(tokens)])
        dist.all_reduce(stat)
        if rank == 0:
            dt = time.time() - t0
            print(f"epoch {epoch} loss {stat[0] / world:.4f} {stat[1] / dt:.0f} tok/s {dt / len(loader) * 1e3:.0f} ms/step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
