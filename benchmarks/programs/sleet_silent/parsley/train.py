"""Language model with token budget batching and one gradient reduction per update."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from batching import TokenBudget, make_corpus


class LstmLM(nn.Module):
    def __init__(self, vocab, d=72):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return h @ self.emb.weight.t() + self.bias


def reduce_update(model, nll, tokens):
    """Sum gradients and counters of all ranks in one message, then normalise by the global token count."""
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    flat = torch.cat([parameters_to_vector(grads), torch.tensor([nll, float(tokens)])])
    dist.all_reduce(flat)
    body, (nll, tokens) = flat[:-2] / flat[-1], flat[-2:].tolist()
    at = 0
    for p in model.parameters():
        p.grad = body[at: at + p.numel()].view_as(p).clone()
        at += p.numel()
    return nll / tokens, int(tokens)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--budget", type=int, default=600, help="tokens per rank and update")
    ap.add_argument("--micro-tokens", type=int, default=250)
    ap.add_argument("--vocab", type=int, default=50)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = LstmLM(args.vocab)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    plan = TokenBudget(make_corpus(700, args.vocab, 5), rank, world, args.budget, args.micro_tokens, seed=40)
    n, t0 = 0, time.time()
    for epoch in range(args.epochs):
        for micro_batches in plan.updates(epoch):
            opt.zero_grad(set_to_none=True)
            nll = tokens = 0
            for ids in micro_batches:
                logits = model(ids[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum")
                loss.backward()
                nll += loss.item()
                tokens += int(ids[:, 1:].ne(0).sum())
            mean_nll, total = reduce_update(model, nll, tokens)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            n += 1
            if rank == 0 and n % 5 == 0:
                print(f"update {n} nll {mean_nll:.4f} tokens {total} micro batches here {len(micro_batches)} ({time.time() - t0:.1f}s)", flush=True)
    if rank == 0:
        torch.save(model.state_dict(), "lstm.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
