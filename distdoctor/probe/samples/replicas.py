"""Which ranks average their gradients: told by the wrappers that do it. Ranks that do should read different samples.

Where gradients are averaged by hand there is no wrapper to tell. For those the shapes of the gradients are noted, once for each
optimizer: whoever reads the recording finds them again among the sizes of the collectives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import Averaging, FirstStep

# Imported by whoever shards; never by us, it takes more than a second.
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


class ReplicasWatch:
    """Notes each set of ranks over which gradients are averaged, once."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._noted: set[Averaging] = set()
        self._waiting: list[tuple[str, str, str, Callable[[Any], Iterable[Iterable[int]]]]] = [
            (_FSDP2, "FSDPParamGroup", "fully_shard", _mesh_ranks),
            (_FSDP1, "FullyShardedDataParallel", "FullyShardedDataParallel", _group_ranks),
        ]

    def note(self, by: str, ranks: Iterable[int]) -> None:
        trace, noted = self.rank.trace, Averaging(tuple(sorted(ranks)), by)
        if noted in self._noted or trace is None:
            return
        self._noted.add(noted)
        trace.note(noted, site=trace.texts.id(sites.user_site()))

    def watch(self, owner: Any, name: str, by: str, ranks_of: Callable[[Any], Iterable[Iterable[int]]]) -> None:
        """Lay a wrapper around the construction of `owner.name`."""

        @self.rank.guarded
        def made(wrapper: Any) -> None:
            for ranks in ranks_of(wrapper):
                self.note(by, ranks)

        def make(original: Any) -> Any:
            def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
                original(wrapper, *args, **kwargs)
                made(wrapper)

            return __init__

        wrappers.lay(getattr(owner, name), "__init__", make)

    def look_for_sharding(self) -> None:
        """Lay the wrappers of FSDP as soon as somebody has imported it."""
        for entry in list(self._waiting):
            module = sys.modules.get(entry[0])
            if module is not None and hasattr(module, entry[1]):
                self._waiting.remove(entry)
                self.watch(module, *entry[1:])


SHAPES = 400  # gradients whose shapes are noted; averaging by hand is recognised by the first of them


def note_parameters(rank: Rank, optimizer: Any) -> None:
    """Note the shapes of the gradients that an optimizer steps with."""
    if rank.trace is None:
        return
    held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    shapes = tuple(str(list(p.shape)) for p in held[:SHAPES])
    rank.trace.note(FirstStep(shapes, sum(p.numel() for p in held), len(held)))


def _group_ranks(wrapper: Any) -> Iterable[Iterable[int]]:
    import torch.distributed as dist

    return [dist.get_process_group_ranks(wrapper.process_group)]


def _mesh_ranks(group: Any) -> Iterable[Iterable[int]]:
    """Of an FSDP2 parameter group: the ranks with which this one shards, and those with which it replicates."""
    import torch.distributed as dist

    info = group.mesh_info
    dims = {info.shard_mesh_dim, info.replicate_mesh_dim} - {None}
    return [dist.get_process_group_ranks(info.mesh.get_group(dim)) for dim in sorted(dims)]


def install(rank: Rank) -> ReplicasWatch:
    """Watch for DistributedDataParallel at once, and for FSDP from the moment it is imported."""
    import torch.distributed.device_mesh as device_mesh
    from torch.distributed import distributed_c10d as c10d
    from torch.nn import parallel

    watch = ReplicasWatch(rank)
    watch.watch(parallel, "DistributedDataParallel", "DistributedDataParallel", _group_ranks)
    look = rank.guarded(watch.look_for_sharding)

    def looking_first(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            look()
            return original(*args, **kwargs)

        return call

    # Whoever shards has imported FSDP by now, and a mesh or a group comes before the first sharded module.
    wrappers.lay(device_mesh.DeviceMesh, "__init__", looking_first)
    wrappers.lay(c10d, "_register_process_group", looking_first)
    look()
    return watch
