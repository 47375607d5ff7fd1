"""`python -m distdoctor.workloads.walk_loaders PACKAGE.MODULE:FACTORY EPOCHS`: read a job's loaders in real ranks, train nothing.

The factory is called in each rank when the process group is up. It returns one loader, several in a list or tuple, or a dict of
them by name. Those whose name begins with `val`, `test` or `eval` are read without gradients, as an evaluation would; the others
as a training would, with an optimizer that steps a parameter of its own after each batch. `set_epoch(epoch)` is called where
there is one, on the loader, its sampler or its data set, as a training loop should: forgetting it there cannot be seen here.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from distdoctor.errors import WrongUse
from distdoctor.workloads.factory import imported, made

EVALUATING = ("val", "test", "eval")
_TOLD = ("sampler", "batch_sampler", "dataset")  # of a loader, where a set_epoch may be


def walk(factory: str, epochs: int, batches: int | None = None) -> None:
    """Read every loader of the factory for so many epochs (or only the first `batches` of each), side by side in all ranks."""
    dist.init_process_group("gloo")
    loaders = named_loaders(factory, imported(factory)())
    # It says which ranks would average gradients: all. Nothing is ever computed with it, so uneven shares do not hang.
    replica = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.0)
    exchanged = Exchanged(epochs * len(loaders))
    for epoch in range(epochs):
        for name, loader in loaders.items():
            evaluates = name.lower().startswith(EVALUATING)
            set_epoch(loader, epoch)
            with torch.set_grad_enabled(not evaluates):
                for number, _ in enumerate(itertools.islice(loader, batches)):
                    if number == 0:
                        exchanged.once()
                    if not evaluates:
                        optimizer.step()
    exchanged.wait()
    dist.barrier()
    del replica, optimizer
    dist.destroy_process_group()


def rehearse(factory: str, ranks: int) -> None:
    """Make the loaders as rank 0 of so many would, in this process alone: its process group sends nothing.

    What fails after the factory exchanged something is left to the real ranks: it received nothing true here.

    WrongUse: the factory fails, or returns something that is no loader.
    """
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in world.items()})
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with _Exchanges() as exchanges:  # type: ignore[no-untyped-call]
        try:
            named_loaders(factory, made(factory))
        except WrongUse:
            if not exchanges.any:
                raise


class _Exchanges(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether anything was exchanged while it was entered."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or func.namespace == "c10d"
        return func(*args, **(kwargs or {}))


class Exchanged:
    """A number that ranks exchange in each pass: replicas do, and a rank that trains alone meanwhile does not.

    Nobody waits before the end, where those with fewer passes (of fewer loaders, or without a batch) make up for them.
    """

    def __init__(self, passes: int) -> None:
        most = torch.tensor([passes])
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self._most = int(most)
        self._handles: list[dist.Work] = []

    def once(self) -> None:
        self._handles.append(dist.all_reduce(torch.zeros(1), async_op=True))

    def wait(self) -> None:
        while len(self._handles) < self._most:
            self.once()
        for handle in self._handles:
            handle.wait()


def named_loaders(factory: str, returned: Any) -> Mapping[str, Any]:
    """The loaders by name, from whatever the factory returned. WrongUse: that is no loader."""
    if isinstance(returned, Mapping):
        found = dict(returned)
    elif isinstance(returned, Sequence):
        found = {f"loader {number}": one for number, one in enumerate(returned)}
    else:
        found = {"loader": returned}
    odd = [type(one).__name__ for one in found.values() if not hasattr(one, "__iter__")]
    if odd or not found:
        raise WrongUse(
            f"{factory} returned {odd[0] if odd else 'no loader'}",
            way_out="Let it return a DataLoader, a list of them, or a dict of them by name.",
        )
    return found


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to whatever of a loader wants to know it."""
    for one in (loader, *(getattr(loader, name, None) for name in _TOLD)):
        tell = getattr(one, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m distdoctor.workloads.walk_loaders PACKAGE.MODULE:FACTORY EPOCHS")
    try:
        walk(sys.argv[1], int(sys.argv[2]))
    except WrongUse as error:
        print(f"error: {error}\n{error.way_out}", file=sys.stderr, flush=True)
        raise SystemExit(WrongUse.exit_code) from None


if __name__ == "__main__":
    main()
