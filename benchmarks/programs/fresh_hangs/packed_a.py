"""Sentences packed into batches of about so many tokens; gradients are averaged by hand."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

VOCAB = 120


def make_sentences(count):
    gen = torch.Generator().manual_seed(21)
    out = []
    for i in range(count):
        # the file has a short-form section and a long-form section in turn
        low, high = (6, 14) if i % 2 == 0 else (16, 28)
        length = int(torch.randint(low, high, (1,), generator=gen))
        out.append(torch.randint(1, VOCAB, (length,), generator=gen))
    return out


class TokenBatches:
    def __init__(self, sentences, max_tokens, seed):
        self.sentences, self.max_tokens, self.seed = sentences, max_tokens, seed

    def plan(self, epoch):
        gen = torch.Generator().manual_seed(self.seed + epoch)
        batches, rows, width = [], [], 0
        for i in torch.randperm(len(self.sentences), generator=gen).tolist():
            wider = max(width, len(self.sentences[i]))
            if rows and wider * (len(rows) + 1) > self.max_tokens:
                batches.append(rows)
                rows, wider = [], len(self.sentences[i])
            rows.append(i)
            width = wider
        batches.append(rows)
        return batches

    def batches(self, epoch):
        plan = self.plan(epoch)
        for rows in plan:
            width = max(len(self.sentences[i]) for i in rows)
            out = torch.zeros(len(rows), width, dtype=torch.long)
            for k, i in enumerate(rows):
                out[k, : len(self.sentences[i])] = self.sentences[i]
            time.sleep(0.15)
            yield out


class Model(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.out(hidden)


def average_gradients(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=180)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    own = make_sentences(480)[rank::world]
    data = TokenBatches(own, args.max_tokens, seed=3)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss(ignore_index=0)
    for epoch in range(args.epochs):
        for tokens in data.batches(epoch):
            loss = loss_fn(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model, world)
            optimizer.step()
        report = [None] * world
        dist.all_gather_object(report, {"rank": rank, "loss": round(loss.item(), 3)})
        if rank == 0:
            print(f"epoch {epoch} {report}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
