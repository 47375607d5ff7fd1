"""The trainings of probe_bug_trainings.py that are about data, and the data sets of all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from jobs.probe_bug_steps import digest, steps


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """A stream of samples, some of them nested, that each worker cuts for itself."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number in range(first, 24, step):
            yield {"x": torch.full((16,), number / 24), "names": [str(number)], "id": number}


class Held(Dataset):  # type: ignore[type-arg]
    """Samples in a list and in an array, as a program of its own holds them."""

    def __init__(self) -> None:
        self.rows = [{"number": number, "name": f"row {number}"} for number in range(40)]
        self.array = torch.arange(40 * 16.0).reshape(40, 16) / 640

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.array[number] + torch.rand(16), self.rows[number]["number"] % 4  # type: ignore[operator]


class Ordered(torch.utils.data.Sampler[int]):
    """A program's own sampler."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(self.length), key=lambda one: (one * 7 + self.epoch) % self.length))

    def __len__(self) -> int:
        return self.length


class Words(Dataset):  # type: ignore[type-arg]
    """Samples of every kind: paths, words, nested things, and nothing that tells its length quickly."""

    def __init__(self) -> None:
        self.files = [f"/data/{number}.txt" for number in range(30)]
        self.table = {
            number: (name, [number, {"deep": torch.ones(2) * number}]) for number, name in enumerate(self.files)
        }

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        return self.table[number]


class Rows(Dataset):  # type: ignore[type-arg]
    """Samples in arrays of NumPy, and in a list of words and numbers."""

    def __init__(self) -> None:
        self.array, self.bare = torch.arange(40.0).reshape(10, 4).numpy(), list(range(10))
        self.words = tuple(f"word {number}" for number in range(10))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        return self.array[number], self.bare[number], self.words[number]


def spawning(rank: int, world_size: int, folder: str) -> str:
    """A loader whose workers are new interpreters."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    return digest(*(batch[0] for batch in loader))


def data(rank: int, world_size: int, folder: str) -> str:
    """Loaders over data of every kind: subsets, streams, nested samples, workers, batches that come as they are done."""
    import random

    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(rank)
    random.seed(rank)
    found: list[Any] = []
    words, held = Words(), Held()
    half = Subset(held, range(0, 40, 2))
    nested = Subset(Subset(words, list(range(20))), [3, 1, 4, 5, 9])
    both = torch.utils.data.ConcatDataset([held, half])
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = Ordered(30)
    shared = DistributedSampler(both, shuffle=True, drop_last=True)  # type: ignore[var-annotated]
    loaders: list[Any] = [
        DataLoader(words, batch_size=3, sampler=own, collate_fn=list),
        DataLoader(nested, batch_size=2, shuffle=True, collate_fn=list),
        DataLoader(both, batch_size=8, sampler=shared, num_workers=2, persistent_workers=True, in_order=False),
        DataLoader(held, batch_size=None, sampler=RandomSampler(held, replacement=True, num_samples=12)),
        DataLoader(Numbers(), batch_size=3, num_workers=2),
        DataLoader(list(range(64)), batch_size=4, shuffle=True),  # type: ignore[arg-type]
        DataLoader([(f"row {n}", [n, {"n": n}]) for n in range(9)], batch_size=3),  # type: ignore[arg-type]
        *(DataLoader(TensorDataset(torch.arange(50_000)), batch_size=25_000) for _ in range(20)),
        DataLoader(TensorDataset(torch.arange(60_000)), batch_size=6_000, shuffle=True),
        DataLoader({"a": 1.0, "b": 2.0, "c": 3.0}, batch_size=2, sampler=["b", "a", "c"]),  # type: ignore[arg-type]
        DataLoader(Rows(), batch_size=2, sampler=torch.tensor([3, 1, 2])),  # type: ignore[arg-type]
        StatefulDataLoader(held, batch_size=8, shuffle=True),
    ]
    for epoch in range(2):
        own.set_epoch(epoch)
        shared.set_epoch(epoch)
        for loader in loaders:
            batches = sorted(map(repr, loader)) if getattr(loader, "persistent_workers", False) else map(repr, loader)
            found += list(batches)
            found += steps(model, optimizer, 1, torch.ones(2, 16))
    for batch in loaders[0]:
        found.append(repr(batch))
        break  # a pass that is left
    del batch, loader, loaders
    gc.collect()
    return digest(*found)


def frameworks(rank: int, world_size: int, folder: str) -> str:
    """Data as Hugging Face's libraries hold and share it."""
    import accelerate
    import datasets

    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    rows = datasets.Dataset.from_dict({"x": [[float(n)] * 16 for n in range(24)], "y": list(range(24))})
    model, found = nn.Linear(16, 4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    map_style = DataLoader(rows.with_format("torch"), batch_size=3, shuffle=True)  # type: ignore[arg-type]
    stream = DataLoader(rows.to_iterable_dataset(2).shuffle(seed=1, buffer_size=4).with_format("torch"), batch_size=3)  # type: ignore[arg-type]
    model, optimizer, map_style = accelerator.prepare(model, optimizer, map_style)
    for epoch in range(2):
        for loader in (map_style, stream):
            loader.dataset.set_epoch(epoch) if hasattr(loader.dataset, "set_epoch") else None
            for batch in loader:
                loss = model(batch["x"]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
    accelerator.save_state(f"{folder}/accelerate-{rank}")
    return digest(*found, *model.parameters())
