"""Sequences of very different lengths: token-weighted gradients, ragged batches, some ranks idle."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(message)s")


class Predictor(nn.Module):
    def __init__(self, vocab=26, dim=20):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)
        self.aux = nn.Linear(dim, 1)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.out(h), self.aux(h[:, -1]).squeeze(1)


def ragged(gen, rank, step):
    """Between zero and seven sequences, the longest ones on the highest rank."""
    n = int(torch.randint(0, 8, (), generator=gen))
    if n == 0:
        return None
    length = int(torch.randint(4, 8 + 4 * rank, (), generator=gen))
    start = torch.randint(0, 26, (n, 1), generator=gen)
    return (start + torch.arange(length + 1)) % 26


def gradients(model, batch):
    """Sum (not mean) of the token losses; returns the number of tokens behind it."""
    if batch is None:
        return 0, 0.0
    logits, aux = model(batch[:, :-1])
    target = batch[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    if len(batch) >= 4:
        loss = loss + 0.1 * (aux - batch[:, -1] / 26).square().sum()
    loss.backward()
    return target.numel(), loss.item()


def combine(model, tokens, loss):
    params = [p for _, p in sorted(model.named_parameters())]
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    flat = torch.cat([p.grad.double().reshape(-1) for p in params] + [torch.tensor([float(tokens), loss], dtype=torch.float64)])
    dist.all_reduce(flat)
    total = flat[-2].clamp(min=1.0)
    at = 0
    for p in params:
        p.grad.copy_((flat[at:at + p.numel()] / total).view_as(p))
        at += p.numel()
    return flat[-1].item() / total.item(), int(flat[-2].item())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=45)
    p.add_argument("--lr", type=float, default=8e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = Predictor()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(33 + rank)
    for step in range(1, args.steps + 1):
        opt.zero_grad(set_to_none=True)
        tokens, loss = gradients(model, ragged(gen, rank, step))
        mean, total = combine(model, tokens, loss)
        if total > 0:
            opt.step()
        if step % 15 == 0 and rank == 0:
            logging.info("step %d loss per token %.4f over %d tokens", step, mean, total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
