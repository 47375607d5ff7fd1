"""Sentence-order classification; tokenizer cache and event log are shared by all ranks."""
import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from shared_files import EventLog, cached_vocabulary


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    heads = ["the", "a", "one", "each"]
    nouns = ["river", "engine", "letter", "forest", "signal", "window", "garden", "planet"]
    verbs = ["moves", "holds", "keeps", "turns", "meets"]
    rows = []
    for _ in range(n):
        r = torch.randint(0, 1000, (6,), generator=g).tolist()
        first = [heads[r[0] % 4], nouns[r[1] % 8], verbs[r[2] % 5]]
        second = [heads[r[3] % 4], nouns[(r[1] + 1 + r[4] % 3) % 8]]
        flip = r[5] % 2
        rows.append((second + ["|"] + first if flip else first + ["|"] + second, flip))
    return rows


class Sentences(Dataset):
    def __init__(self, rows, vocab):
        self.rows, self.vocab = rows, vocab

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        words, y = self.rows[i]
        return torch.tensor([self.vocab[w] for w in words]), y


class Classifier(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(d, 2)

    def forward(self, x):
        return self.out(self.drop(self.rnn(self.emb(x))[0][:, -1]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--seed", type=int, default=19)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    args.out.mkdir(parents=True, exist_ok=True)

    rows = corpus(1024, args.seed)
    vocab = cached_vocabulary(args.out / "vocab.json", (w for words, _ in rows for w in words))
    data = Sentences(rows, vocab)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    net = DDP(Classifier(len(vocab)))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    events = EventLog(args.out / "events.jsonl", fresh=rank == 0)
    dist.barrier()

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            events.write(rank=rank, pid=os.getpid(), step=step, epoch=epoch, loss=round(loss.item(), 5))
        dist.barrier()
        if rank == 0:
            seen = [e for e in events.read() if e["epoch"] == epoch]
            assert len(seen) == world * len(loader)
            print(f"epoch {epoch} loss {sum(e['loss'] for e in seen) / len(seen):.4f} events {len(seen)}", flush=True)
            torch.save(net.module.state_dict(), args.out / "order.pt")
        dist.barrier()
    events.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
