import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from evaluation import EvalLoop

log = logging.getLogger("lm")


class SmallLM(nn.Module):
    def __init__(self, vocab, dim=48, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.down = nn.Linear(hidden, dim)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.down(h) @ self.embed.weight.t() + self.bias


def make_corpus(vocab, sentences, length, seed):
    g = torch.Generator().manual_seed(seed)
    follow = torch.randint(0, vocab, (vocab,), generator=torch.Generator().manual_seed(1))
    rows = torch.empty(sentences, length, dtype=torch.long)
    rows[:, 0] = (torch.rand(sentences, generator=g) ** 3 * vocab).long()
    for t in range(1, length):
        fresh = (torch.rand(sentences, generator=g) ** 3 * vocab).long()
        rows[:, t] = torch.where(torch.rand(sentences, generator=g) < 0.7, follow[rows[:, t - 1]], fresh)
    return rows


def accuracy(preds, labels):
    return (preds == labels).float().mean().item()


def distinct(preds, labels):
    return preds.unique().numel() / labels.unique().numel()


def collate(items):
    return torch.stack([t for (t,) in items])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=6000)
    p.add_argument("--length", type=int, default=25)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--steps", type=int, default=75)
    p.add_argument("--eval-every", type=int, default=25)
    p.add_argument("--eval-sentences", type=int, default=720)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(0)
    train = TensorDataset(make_corpus(args.vocab, 4000, args.length, 2))
    valid = TensorDataset(make_corpus(args.vocab, args.eval_sentences, args.length, 3))
    sampler = DistributedSampler(train, seed=5)
    train_loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True, collate_fn=collate)
    valid_loader = DataLoader(
        valid, 2 * args.batch, sampler=DistributedSampler(valid, shuffle=False), drop_last=True, collate_fn=collate
    )
    model = DDP(SmallLM(args.vocab))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    evaluation = EvalLoop(model, {"accuracy": accuracy, "distinct": distinct})

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for tokens in train_loader:
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                log.info("step %d loss %.3f", step, loss.item())
            if step % args.eval_every == 0:
                log.info("step %d %s", step, evaluation.run(valid_loader))
            if step >= args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
