"""Ranks that nothing but their stack makes known: children of torch.multiprocessing.spawn, or of a launcher written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distdoctor.attach.processes import HostProcesses, Process, RankPlacement
from distdoctor.attach.py_spy import PySpyDump
from distdoctor.recording.stacks import ThreadStack


def families(host: HostProcesses, known: Iterable[int]) -> dict[int, list[Process]]:
    """Parent -> children that may be ranks: at least two Python children of one Python process, started by multiprocessing.

    Families of processes that are ranks by their environment (`known`) are their DataLoader workers and no ranks.
    """
    taken = set(known)
    found: dict[int, list[Process]] = {}
    for parent in host.processes.values():
        if not parent.is_python or parent.is_launcher or parent.pid in taken:
            continue
        if any(ancestor.pid in taken for ancestor in host.ancestors(parent.pid)):
            continue
        children = [child for child in _children(host, parent) if child.is_python and not child.is_machinery]
        children = [child for child in children if child.is_spawned_child or child.arguments == parent.arguments]
        if len(children) >= 2:
            found[parent.pid] = children
    return found


def _children(host: HostProcesses, parent: Process) -> list[Process]:
    """The children, and those that a forkserver started in the parent's name."""
    children = host.children(parent.pid)
    servers = [
        child for child in children if child.is_machinery and any("forkserver" in word for word in child.arguments)
    ]
    return children + [child for server in servers for child in host.children(server.pid)]


def places(parent: int, children: Iterable[Process], dumps: Mapping[int, PySpyDump]) -> dict[int, RankPlacement]:
    """pid -> rank. Empty where nothing in the stacks speaks of a distributed job.

    mp.spawn's own frame knows its index; else a variable called `rank` in the user's frames; else the order of starting. How many
    mp.spawn has started says the frame of the parent that waits for them.
    """
    children = list(children)
    started = spawn_count(dumps[parent].threads if parent in dumps else ())
    stacks = {p.pid: dumps[p.pid].threads for p in children if p.pid in dumps}
    indices = {pid: index for pid, threads in stacks.items() if (index := spawn_index(threads)) is not None}
    if not indices and not any(_is_distributed(threads) for threads in stacks.values()):
        return {}
    named = {pid: dumps[pid].ranks_named[0] for pid in stacks if dumps[pid].ranks_named}
    for choice in (indices, named):
        if len(choice) == len(children) and len(set(choice.values())) == len(choice):
            world = max(started, max(choice.values()) + 1)
            return {pid: RankPlacement(rank, world, rank, world) for pid, rank in choice.items()}
    ordered = sorted(children, key=lambda child: (child.started, child.pid))
    return {
        child.pid: RankPlacement(number, len(ordered), number, len(ordered)) for number, child in enumerate(ordered)
    }


def spawn_index(threads: Iterable[ThreadStack]) -> int | None:
    """The `i` of torch.multiprocessing.spawn's `_wrap(fn, i, args, error_file)`, which is what the user's function gets first."""
    for thread in threads:
        frame = thread.inside("torch/multiprocessing/spawn.py", "_wrap")
        if frame is not None and frame.arguments.get("i", "").isdigit():
            return int(frame.arguments["i"])
    return None


def spawn_count(threads: Iterable[ThreadStack]) -> int:
    """The `nprocs` of torch.multiprocessing.spawn, 0 where nobody waits in it."""
    for thread in threads:
        for frame in thread.frames:
            if frame.path.endswith("torch/multiprocessing/spawn.py") and frame.arguments.get("nprocs", "").isdigit():
                return int(frame.arguments["nprocs"])
    return 0


def _is_distributed(threads: Iterable[ThreadStack]) -> bool:
    return any("/torch/distributed/" in frame.path for thread in threads for frame in thread.frames)
