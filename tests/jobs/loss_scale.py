"""Losses that are scaled once too often, and windows of micro-steps that outlast the epoch. Ill ones, and healthy twins."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from jobs.replicas import Batches, Net, adam, digest_of_training


def divided_by_ranks(rank: int, world_size: int, *, times: bool = False) -> str:
    model = DistributedDataParallel(Net())
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(6):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        scores = model(inputs)
        if times:
            (cross_entropy(scores, targets) * world_size).backward()  # times
        else:
            (cross_entropy(scores, targets) / world_size).backward()  # divided
        optimizer.step()
    return digest_of_training(model)


def halved(rank: int, world_size: int) -> str:
    """A loss with a weight that happens to be the inverse of the number of ranks."""
    weight = 0.5
    model = DistributedDataParallel(Net())
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(6):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        (weight * cross_entropy(model(inputs), targets)).backward()
        optimizer.step()
    return digest_of_training(model)


def averaged_in_hooks(rank: int, world_size: int, *, early: bool = False) -> str:
    """Each gradient is divided, and then summed over the ranks, by hooks: once it is there, or on its way (`early`)."""
    model, works = Net(), []

    def send(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if not early:
            parameter.grad /= world_size
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        if early:
            parameter.register_hook(lambda gradient: gradient / world_size)
        parameter.register_post_accumulate_grad_hook(send)
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(6):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        while works:
            works.pop().wait()
        optimizer.step()
    return digest_of_training(model)


def token_means(
    rank: int, world_size: int, *, divided_by: str = "own count", alike: bool = False, micro_steps: int = 4
) -> str:
    """Micro-steps of sentences of their own lengths. `divided_by`: also by `4`, or only by the count of the `window`, or of the
    windows of `all` ranks.

    `alike`: every rank has as many.
    """
    model = DistributedDataParallel(Net())
    optimizer, lengths = adam(model), torch.Generator().manual_seed(0 if alike else rank)
    for _ in range(24 // micro_steps):  # past those of which every root is read
        window = [int(one) for one in torch.randint(5, 40, (micro_steps,), generator=lengths)]
        count = torch.tensor(sum(window))
        if divided_by == "all":
            dist.all_reduce(count)
        optimizer.zero_grad()
        for number, tokens in enumerate(window, 1):
            inputs, targets = torch.randn(tokens, 20, generator=lengths), torch.arange(tokens) % 10
            with nullcontext() if number == micro_steps else model.no_sync():
                loss = cross_entropy(model(inputs), targets, reduction="sum")
                loss = loss / (int(count) if divided_by in ("window", "all") else tokens)
                loss = loss * world_size if divided_by == "all" else loss
                (loss / 4 if divided_by == "4" else loss).backward()  # each micro-step
        optimizer.step()
    return digest_of_training(model)


def windows(rank: int, world_size: int, *, at_the_end: str = "", over: int = 0, parts: int = 1) -> str:
    """Ten micro-steps an epoch, four to a window. `at_the_end`: what is done with the last two, `step` or `zero`, or
    `zero first`: as the next window begins.

    `over`: the optimizer steps after so many, whatever the loss is divided by and the wrapper is told. `parts`: so many
    optimizers share the model, and each zeroes its part when it has stepped.
    """
    generator = torch.Generator().manual_seed(3)
    samples = 64 if over else 80
    inputs, labels = torch.randn(samples, 20, generator=generator), torch.arange(samples) % 10
    dataset = TensorDataset(inputs, labels)
    model = DistributedDataParallel(Net())
    held = list(model.parameters())
    optimizers = [torch.optim.AdamW(held[part::parts], lr=1e-2) for part in range(parts)]
    sampler: DistributedSampler[object] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader, 1):
            ends = number % (2 if over else 4) == 0 or (at_the_end == "step" and number == len(loader))
            size = 2 if over or (at_the_end == "step" and number > 8) else 4
            if at_the_end == "zero first" and number % 4 == 1:
                optimizers[0].zero_grad()  # a window begins
            with nullcontext() if ends else model.no_sync():
                (cross_entropy(model(inputs), targets) / size).backward()
            for optimizer in optimizers if ends and not number % (over or 1) else ():
                optimizer.step()  # the window is over
                optimizer.zero_grad()
        for optimizer in optimizers if at_the_end == "zero" else ():
            optimizer.zero_grad()
    return digest_of_training(model)
