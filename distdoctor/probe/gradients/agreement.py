"""Which ranks should hold the same bits of a parameter: told by DistributedDataParallel and by DTensor's mesh and placements."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class WrappedModel:
    """One DistributedDataParallel: what it reduces, among which ranks, and whether it broadcasts buffers before forwards."""

    module: weakref.ref[nn.Module]
    ranks: str
    reduced: frozenset[int]  # ids of the parameters that it reduces; they live as long as it does
    ignored: frozenset[str]
    broadcasts: bool
    number: int  # 1, 2, ... in the order in which they were made

    def held(self) -> Iterable[tuple[str, Tensor]]:
        """The parameters of the module inside, as it is now, but for those that it was told to ignore."""
        return ((name, parameter) for name, parameter in self._inside() if name not in self.ignored)

    def left_alone(self) -> Iterable[Tensor]:
        """Those that it was told to ignore."""
        return (parameter for name, parameter in self._inside() if name in self.ignored)

    def _inside(self) -> Iterable[tuple[str, Tensor]]:
        wrapper = self.module()
        if wrapper is None:
            return ()
        inside: nn.Module = wrapper.module  # type: ignore[assignment]
        return inside.named_parameters()


class Agreement:
    """Every DistributedDataParallel of this process, and what they and DTensor say about a tensor."""

    def __init__(self) -> None:
        self.wrapped: list[WrappedModel] = []
        self._numbers = itertools.count(1)
        self._of_mesh: dict[tuple[int, str], str] = {}

    def add(self, wrapper: nn.Module) -> WrappedModel:
        """Take in a DistributedDataParallel that was just made."""
        import torch.distributed as dist

        ranks = ",".join(map(str, sorted(dist.get_process_group_ranks(wrapper.process_group))))  # type: ignore[arg-type]
        ignored = frozenset(getattr(wrapper, "parameters_to_ignore", ()))
        inside: nn.Module = wrapper.module  # type: ignore[assignment]
        reduced = frozenset(
            id(parameter)
            for name, parameter in inside.named_parameters()
            if parameter.requires_grad and name not in ignored
        )
        broadcasts = bool(getattr(wrapper, "forward_sync_buffers", getattr(wrapper, "broadcast_buffers", True)))
        made = WrappedModel(weakref.ref(wrapper), ranks, reduced, ignored, broadcasts, next(self._numbers))
        self.wrapped = [one for one in self.wrapped if one.module() is not None]
        self.wrapped.append(made)
        return made

    def ignored(self) -> set[int]:
        """The ids of the parameters that a wrapper was told to ignore."""
        return {id(parameter) for one in self.wrapped if one.ignored for parameter in one.left_alone()}

    def by_wrapper(self) -> dict[int, tuple[str, bool]]:
        """id of each wrapped parameter -> (the ranks of its wrapper, whether the wrapper reduces it)."""
        found: dict[int, tuple[str, bool]] = {}
        for one in self.wrapped:
            for _, parameter in one.held():
                found[id(parameter)] = (one.ranks, id(parameter) in one.reduced)
        return found

    def of_buffers(self, root: nn.Module) -> tuple[str, bool]:
        """The ranks of the wrapper around a module, and whether it broadcasts buffers before each forward."""
        for one in self.wrapped:
            wrapper = one.module()
            if wrapper is not None and wrapper.module is root:
                return one.ranks, one.broadcasts
        return "", False

    def of_placement(self, tensor: Tensor) -> str:
        """The ranks that hold the same local bits of a DTensor; "" for any other tensor."""
        spec = getattr(tensor, "_spec", None)
        if spec is None:
            return ""
        key = (id(spec.mesh), str(spec.placements))
        known = self._of_mesh.get(key)
        if known is None:
            known = self._of_mesh[key] = _replicas(spec.mesh, spec.placements)
        return known


def _replicas(mesh: Any, placements: Any) -> str:
    """This rank and those that differ from it only along dimensions of the mesh over which the tensor is replicated."""
    here = mesh.get_coordinate()
    if here is None:
        return ""
    index = tuple(
        slice(None) if placement.is_replicate() else at for at, placement in zip(here, placements, strict=True)
    )
    return ",".join(map(str, sorted(mesh.mesh[index].flatten().tolist())))
