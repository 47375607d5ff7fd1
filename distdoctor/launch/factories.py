"""The user's own functions, called once in a child process before any rank is started: whether they make what they should."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from distdoctor.errors import WrongUse
from distdoctor.workloads.request import TrainingRequest

PATIENCE_SECONDS = 20.0  # a factory that takes longer is left to the ranks: nobody waits twice for a large data set


def try_factories(request: TrainingRequest, ranks: int) -> None:
    """Make data and model as a rank would.

    WrongUse: that fails, returns something else, or the model has not the blocks that the request needs for so many ranks.
    """
    _tried(lambda: _make_training(request, ranks))


def try_loaders(reference: str, ranks: int) -> None:
    """Make the loaders as rank 0 would. WrongUse: that fails, or returns something that is no loader."""

    def rehearsed() -> None:
        from distdoctor.workloads.walk_loaders import rehearse

        rehearse(reference, ranks)

    _tried(rehearsed)


def _tried(make: Callable[[], object]) -> None:
    """Make it in a process of its own that leaves nothing behind here. WrongUse: as it says there."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        _make_and_say(make, writes)
    os.close(writes)
    try:
        ready, _, _ = select.select([reads], [], [], PATIENCE_SECONDS)
        told = os.read(reads, 1 << 16) if ready else b""
    finally:
        os.close(reads)
        os.kill(pid, signal.SIGKILL)  # it is not waited for yet, so the number is still its own
        os.waitpid(pid, 0)
    if told:
        words, way_out = json.loads(told)
        raise WrongUse(words, way_out=way_out)


def _make_and_say(make: Callable[[], object], writes: int) -> NoReturn:
    """In the child: what is wrong, as JSON through the pipe; nothing where all is well, whatever else happens."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        make()
    except WrongUse as error:
        os.write(writes, json.dumps([str(error)[:2000], error.way_out]).encode())
    finally:
        os._exit(0)


def _make_training(request: TrainingRequest, ranks: int) -> None:
    from distdoctor.workloads.blocks import cut, recompute_activations
    from distdoctor.workloads.factory import make_data, make_model
    from distdoctor.workloads.shapes import Shapes

    train_set, _ = make_data(request.data, request.data_path)
    model = make_model(request.model, Shapes.of(train_set))
    if request.checkpoint_activations:
        recompute_activations(model)
    if parts := parts_of_model(request, ranks):
        cut(model, parts, purpose=f"--strategy {request.strategy}")


def parts_of_model(request: TrainingRequest, ranks: int) -> int:
    """Into how many parts the strategy cuts the model: what `parts(request, ranks)` beside its `train` says; 0 for none."""
    parts = getattr(importlib.import_module(request.train.partition(":")[0]), "parts", None)
    return int(parts(request, ranks)) if parts is not None else 0
