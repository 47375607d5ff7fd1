import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from prepare import load


class Windows(Dataset):
    def __init__(self, ids, length):
        self.ids, self.length = ids, length

    def __len__(self):
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, i):
        chunk = self.ids[i * self.length:(i + 1) * self.length + 1]
        return chunk[:-1], chunk[1:]


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=96, layers=2, length=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        return self.head(self.body(self.tok(ids) + self.pos, mask=self.mask))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lines", type=int, default=4800)
    p.add_argument("--merges", type=int, default=150)
    p.add_argument("--batch-size", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = os.path.join(tempfile.gettempdir(), f"tokens-{os.environ['MASTER_PORT']}.pt")
    cache = load(path, args.lines, args.merges)
    data = Windows(cache["ids"], 32)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DDP(TinyLM(cache["vocab"]), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} steps {len(loader)} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
