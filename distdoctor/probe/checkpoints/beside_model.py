"""Copies of the model that no module holds, averages and targets in dictionaries: those that a checkpoint holds, and what lives
when training goes on. Names end with the type, for a copy that is brought back in another one has other bits."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from distdoctor.probe.checkpoints.live_state import Named, is_sharded, storage_of, storages_of
from distdoctor.probe.checkpoints.tensors import tensors_in
from distdoctor.probe.tensors.digests import bytes_of
from distdoctor.probe.tensors.module_trees import plain_name
from distdoctor.recording.trace.state_file import MOST_TENSORS, WEIGHTS

LARGEST_BYTES = 1 << 30  # of all of them
_PLAIN = (Tensor, nn.Parameter)  # subclasses may answer as they like


def saved_beside(state: Any, live: Mapping[str, Named]) -> Named:
    """What a checkpoint holds under the name and with the shape of a weight, and is neither that weight nor a shard of it."""
    weights = {} if is_sharded(live[WEIGHTS].values()) else live[WEIGHTS]
    own = storages_of(live)
    found: Named = {}
    for name, tensor in tensors_in(state) if weights else ():
        plain = plain_name(name).removeprefix("module.")
        mine = weights.get(plain)
        if mine is not None and tensor.shape == mine.shape and storage_of(tensor) not in own:
            found[f"{plain} {_type_of(tensor)}"] = (
                tensor  # of several the last: an average comes after the model, if at all
            )
    return found


def alive_beside(live: Mapping[str, Named]) -> Named | None:
    """Every tensor of the process that has the shape of a weight and is no part of the training itself; None where they are too
    many or too large to be looked at before a training begins. Looks at every object."""
    if is_sharded(live[WEIGHTS].values()):
        return None
    shapes, own = {tensor.shape for tensor in live[WEIGHTS].values()}, storages_of(live)
    others = [one for one in _plain_tensors() if one.shape in shapes and storage_of(one) not in own]
    if len(others) > MOST_TENSORS or sum(map(bytes_of, others)) > LARGEST_BYTES:
        return None
    return {f"{number} {_type_of(one)}": one for number, one in enumerate(others)}


def _plain_tensors() -> Iterator[Tensor]:
    return (one for one in gc.get_objects() if type(one) in _PLAIN)


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
