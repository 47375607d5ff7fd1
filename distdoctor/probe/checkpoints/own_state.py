"""Tensors that objects of the user's own hold beside model and optimizer: what an exchange has not sent yet, a queue, a filter.

Read from the variables of the functions at work; no code of theirs is run. Of what a checkpoint holds it is said whose it is.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.checkpoints.live_state import Named, digests_of, storage_of
from distdoctor.probe.checkpoints.tensors import tensors_in
from distdoctor.probe.tensors.digests import bytes_of
from distdoctor.probe.variables import held_by, reachable

MOST = 128  # tensors
LARGEST_BYTES = 16 << 20  # of one
ALL_BYTES = 64 << 20

_HOLDS_OTHERS = (nn.Module, torch.optim.Optimizer, torch.utils.data.Dataset)


def own_tensors(known: Container[int]) -> Named:
    """`Class.attribute` or `Class.attribute[key]` -> tensor. `known`: storages of the training itself, which are left out. Of two
    objects of a class neither is told: nobody could say which is which in another process."""
    found: Named = {}
    classes: dict[str, int] = {}
    for one in reachable(sys._getframe(1)):
        kind = type(one)
        if issubclass(kind, _HOLDS_OTHERS) or not sites.is_users_class(kind):
            continue
        held = {
            f"{kind.__name__}.{name}": tensor
            for name, tensor in held_by(one)
            if not tensor.requires_grad and bytes_of(tensor) <= LARGEST_BYTES and storage_of(tensor) not in known
        }
        classes[kind.__name__] = classes.get(kind.__name__, 0) + bool(held)
        found |= held if len(found) + len(held) <= MOST else {}
    return {name: one for name, one in found.items() if classes[name.partition(".")[0]] == 1}


def own_digests(tensors: Named) -> dict[str, int]:
    """One for each of the first so many bytes of them."""
    size, kept = 0, dict[str, Tensor]()
    for name, tensor in tensors.items():
        size += bytes_of(tensor)
        if size <= ALL_BYTES:
            kept[name] = tensor
    return digests_of(kept)


def own_in(state: Any, tensors: Named) -> dict[str, int]:
    """The digests of those that a state holds, as they are or as they were copied just now."""
    forms = {(one.shape, one.dtype) for one in tensors.values()}
    saved = {str(n): one for n, (_, one) in enumerate(tensors_in(state)) if (one.shape, one.dtype) in forms}
    there = set(own_digests(saved).values()) if saved else set()
    return {name: digest for name, digest in own_digests(tensors).items() if digest in there} if there else {}
