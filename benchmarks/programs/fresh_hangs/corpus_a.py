"""Next-token training on a packed corpus; the packed index is made on first use."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB = 64
BLOCK = 24


class TinyLM(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden)


def pack_documents(count):
    gen = torch.Generator().manual_seed(13)
    rows = []
    for start in range(count):
        walk = torch.randint(-2, 3, (BLOCK + 1,), generator=gen).cumsum(0)
        rows.append((walk + start) % VOCAB)
        if start % 64 == 0:
            time.sleep(0.05)
    return torch.stack(rows)


def load_index(folder, count):
    path = os.path.join(folder, f"packed_{count}.pt")
    if dist.get_rank() == 0 and not os.path.exists(path):
        packed = pack_documents(count)
        torch.save(packed, path + ".part")
        os.replace(path + ".part", path)
    dist.barrier()
    return torch.load(path)


def make_run_folder(root):
    stamp = [f"{time.strftime('%H%M%S')}-{os.getpid()}"]
    dist.broadcast_object_list(stamp, src=0)
    folder = os.path.join(root, stamp[0])
    os.makedirs(folder, exist_ok=True)
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="runs_corpus")
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stagger", type=float, default=5.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    folder = make_run_folder(args.root)
    # the file server is slow when everybody opens the corpus at once
    time.sleep(args.stagger * rank)
    packed = load_index(folder, args.documents)

    data = TensorDataset(packed[:, :-1], packed[:, 1:])
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (tokens, target) in enumerate(loader):
            time.sleep(0.15)
            optimizer.zero_grad()
            loss = loss_fn(model(tokens).flatten(0, 1), target.flatten())
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 4 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
