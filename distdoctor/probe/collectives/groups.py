"""Every process group of this rank is listened to from its making on."""

from __future__ import annotations

import atexit
from typing import Any

from distdoctor.probe import wrappers
from distdoctor.probe.collectives import dispatcher
from distdoctor.probe.collectives.stream import HAS_HOOKS, CollectivesStream
from distdoctor.probe.context import Rank
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import NewGroupDone


def install(rank: Rank, trace: TraceWriter) -> None:
    """Listen to every group that this process makes from now on."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    stream = CollectivesStream(rank, trace)
    making: list[tuple[int, ...]] = []  # members of the groups under construction, innermost last

    @rank.guarded
    def listen(pg: Any, ranks: tuple[int, ...]) -> None:
        if pg not in c10d._world.pg_map:  # of somebody who calls that function himself
            return
        name, backend = c10d._world.pg_names.get(pg, ""), str(c10d._world.pg_map[pg][0])
        stream.attach(pg, name, ranks, backend)
        stream.handles.lay_where_likely()
        trace.note(NewGroupDone(tuple(ranks), name))

    def helping(original: Any) -> Any:
        def _new_process_group_helper(size: int, group_rank: Any, ranks: Any, *args: Any, **kwargs: Any) -> Any:
            making.append(tuple(ranks or range(size)))
            try:
                return original(size, group_rank, ranks, *args, **kwargs)
            finally:
                making.pop()

        return _new_process_group_helper

    def registering(original: Any) -> Any:
        def _register_process_group(name: str, pg: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(name, pg, *args, **kwargs)
            listen(pg, making[-1] if making else ())
            return result

        return _register_process_group

    wrappers.lay(c10d, "_new_process_group_helper", helping)
    # Every group comes by there, once it has its name (torch 2.11-2.15).
    if not wrappers.lay(c10d, "_register_process_group", registering):
        rank.trouble(
            "collectives", RuntimeError("this torch makes process groups in another way: no collective is seen")
        )
    wrappers.lay(dist.Work, "wait", stream.wrap_wait)
    wrappers.lay_everywhere((c10d, dist), "monitored_barrier", stream.wrap_monitored_barrier)
    atexit.register(rank.guarded(stream.handles.end))
    if HAS_HOOKS:
        atexit.register(rank.guarded(stream.detach_all))
    else:
        dispatcher.listen(stream)
