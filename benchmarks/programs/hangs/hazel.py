"""Uneven inputs under Join with a second joinable that counts tokens."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel


class CountHook(JoinHook):
    def __init__(self, counter):
        self.counter = counter

    def main_hook(self):
        dist.all_reduce(torch.zeros(1, dtype=torch.long), group=self.counter.group)

    def post_hook(self, is_last_joiner):
        self.counter.total = self.counter.total.clone()


class TokenCounter(Joinable):
    """Sums the tokens of a step over the ranks that still have some."""

    def __init__(self):
        super().__init__()
        self.group = dist.group.WORLD
        self.total = torch.zeros(1, dtype=torch.long)

    def __call__(self, tokens):
        Join.notify_join_context(self)
        count = torch.tensor([tokens.numel()])
        dist.all_reduce(count, group=self.group)
        self.total += count

    def join_hook(self, **kwargs):
        return CountHook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return self.group


class TagModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 12)
        self.rnn = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens):
        return self.out(self.rnn(self.table(tokens))[0])


def sentences(rank):
    gen = torch.Generator().manual_seed(rank)
    for number in range(9 + 7 * rank):
        length = int(torch.randint(4, 20, (1,), generator=gen))
        yield torch.randint(0, 40, (4, length), generator=gen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(TagModel())
    counter = TokenCounter()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        steps = 0
        with Join([counter, model]):
            for tokens in sentences(rank):
                counter(tokens)
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 3)
                loss.backward()
                opt.step()
                steps += 1
        print(f"[{rank}] epoch {epoch}: {steps} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
