"""Policy distillation on sampled answers: each global batch is one easy and one hard prompt with eight answers each."""
import random
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

VOCAB, PAD = 40, -100


@dataclass
class Answer:
    prompt: int
    tokens: list[int] = field(repr=False)


class Rollouts:
    """Answers come back from the sampler prompt by prompt."""

    def __init__(self, siblings=8, seed=23):
        self.siblings, self.rnd = siblings, random.Random(seed)
        self.jump = [self.rnd.randrange(VOCAB) for _ in range(VOCAB)]

    def _answer(self, prompt, low, high):
        tok, toks = self.rnd.randrange(VOCAB), []
        for _ in range(self.rnd.randint(low, high)):
            toks.append(tok)
            tok = self.jump[tok] if self.rnd.random() < 0.8 else self.rnd.randrange(VOCAB)
        return Answer(prompt, toks)

    def next_batch(self, step):
        easy = [self._answer(2 * step, 8, 14) for _ in range(self.siblings)]
        hard = [self._answer(2 * step + 1, 110, 140) for _ in range(self.siblings)]
        return easy + hard


def scatter(batch, rank, world):
    """The rows of this rank."""
    return batch[rank::world]


class Student(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def collate(rows):
    ids = pad_sequence([torch.tensor(r.tokens[:-1]) for r in rows], batch_first=True)
    nxt = pad_sequence([torch.tensor(r.tokens[1:]) for r in rows], batch_first=True, padding_value=PAD)
    return ids, nxt


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    source = Rollouts()
    net = DDP(Student())
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(50):
        ids, nxt = collate(scatter(source.next_batch(step), rank, world))
        tokens = (nxt != PAD).sum().float()
        dist.all_reduce(tokens)
        nll = F.cross_entropy(net(ids).flatten(0, 1), nxt.flatten(), ignore_index=PAD, reduction="sum")
        opt.zero_grad()
        (nll * world / tokens).backward()
        opt.step()
        if step % 10 == 0:
            total = nll.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step}: {total.item() / tokens.item():.3f} per token", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
