"""Fine-tunes a sentence classifier after adding marker tokens to its vocabulary."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

BASE_VOCAB, MARKERS, LABELS = 400, 24, 8


class Vocabulary:
    def __init__(self, size):
        self.tokens = {f"w{i}": i for i in range(size)}

    def add_tokens(self, names):
        for name in names:
            self.tokens.setdefault(name, len(self.tokens))

    def __len__(self):
        return len(self.tokens)


class Classifier(nn.Module):
    def __init__(self, vocab, dim=96, hidden=128):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embeddings.weight, std=0.2)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * hidden, LABELS)

    def resize_token_embeddings(self, n):
        old = self.embeddings
        if n == old.num_embeddings:
            return
        new = nn.Embedding(n, old.embedding_dim)
        with torch.no_grad():
            keep = min(n, old.num_embeddings)
            new.weight[:keep] = old.weight[:keep]
            new.weight[keep:] = old.weight.mean(0)
        self.embeddings = new

    def forward(self, ids):
        h, _ = self.rnn(self.embeddings(ids))
        return self.score(h.max(1).values)


def make_optimizer(model, lr, weight_decay):
    no_decay = ("bias",)
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(k in n for k in no_decay)],
         "weight_decay": weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)


class Sentences:
    """The label is a function of the two markers that stand in the sentence."""

    def __init__(self, vocab, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.first = min(i for t, i in vocab.tokens.items() if t.startswith("<m"))
        ids = torch.arange(MARKERS)
        self.table = (ids[:, None] % 4) * 2 + ids % 2

    def batch(self, n, length):
        ids = torch.randint(0, BASE_VOCAB, (n, length), generator=self.g)
        marks = torch.randint(0, MARKERS, (n, 2), generator=self.g)
        half = length // 2
        rows = torch.arange(n)
        ids[rows, torch.randint(0, half, (n,), generator=self.g)] = marks[:, 0] + self.first
        ids[rows, torch.randint(half, length, (n,), generator=self.g)] = marks[:, 1] + self.first
        return ids, self.table[marks[:, 0], marks[:, 1]]


@torch.no_grad()
def accuracy(model, data, rounds, length):
    model.eval()
    hit = torch.zeros(2)
    for _ in range(rounds):
        ids, y = data.batch(128, length)
        hit += torch.tensor([(model(ids).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hit)
    model.train()
    return (hit[0] / hit[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=180)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--length", type=int, default=12)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(21)

    vocab = Vocabulary(BASE_VOCAB)
    model = Classifier(len(vocab))
    vocab.add_tokens([f"<m{i}>" for i in range(MARKERS)])
    model.resize_token_embeddings(len(vocab))
    optimizer = make_optimizer(model, args.lr, 0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.steps)
    ddp = DDP(model)
    train, test = Sentences(vocab, 500 + rank), Sentences(vocab, 900 + rank)

    running = 0.0
    for step in range(1, args.steps + 1):
        ids, y = train.batch(args.batch, args.length)
        loss = F.cross_entropy(ddp(ids), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        running += loss.item()
        if step % 20 == 0:
            acc = accuracy(model, test, 2, args.length)
            if rank == 0:
                print(f"step {step} loss {running / 20:.4f} accuracy {acc:.3f}", flush=True)
            running = 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
