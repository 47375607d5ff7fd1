"""Byte-pair features are cached on disk by the main process and shared by all."""
import argparse
import collections
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TEXT = ("the stone wall by the river holds the old mill and the mill turns slowly when rain comes "
        "over the hill and fills the narrow stream below the stone bridge ") * 12


def load_tokens(text):
    words = text.split()
    counts = collections.Counter(words)
    vocab = {w: i for i, (w, _) in enumerate(counts.most_common())}
    return torch.tensor([vocab[w] for w in words]), vocab


def featurize(tokens, vocab, width):
    rows = tokens.unfold(0, width + 1, 1)
    return {"x": rows[:, :-1].clone(), "y": rows[:, -1].clone(), "size": len(vocab)}


def cached_features(path, width, stagger):
    rank = dist.get_rank()
    time.sleep(stagger * rank)
    if not os.path.exists(path):
        if rank == 0:
            tmp = path + ".part"
            torch.save(featurize(*load_tokens(TEXT), width), tmp)
            os.replace(tmp, path)
        dist.barrier()
    return torch.load(path)


class NextWord(nn.Module):
    def __init__(self, size, width, d=24):
        super().__init__()
        self.emb = nn.Embedding(size, d)
        self.mlp = nn.Sequential(nn.Linear(width * d, 64), nn.ReLU(), nn.Linear(64, size))

    def forward(self, x):
        return self.mlp(self.emb(x).flatten(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--stagger", type=float, default=0.4, help="seconds between ranks, easy on the file server")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    root = [tempfile.mkdtemp(prefix="feat") if rank == 0 else None]
    dist.broadcast_object_list(root, src=0)
    feats = cached_features(os.path.join(root[0], f"w{args.width}.pt"), args.width, args.stagger)
    torch.manual_seed(15)
    model = DDP(NextWord(feats["size"], args.width))
    data = TensorDataset(feats["x"], feats["y"])
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} batches {len(loader)} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
