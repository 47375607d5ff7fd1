"""Flight recorder dumps with what else the same job left: how many ranks it has, and at which lines they stand.

A dump counts calls and knows lines only where it was written with stacks; a copied stack knows the line and no number. A call
that a rank has not completed and the torch function that its stack is in are one, where they are of one operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from distdoctor.recording.called_functions import OPERATIONS
from distdoctor.recording.flight.backend_state import BackendState, GroupState
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.stacks import ProcessStacks, Stacks, ThreadStack
from distdoctor.recording.trace.layout import POINT_TO_POINT, ROOTED, Op

_EVERYBODYS = "default_pg"
_IN_BACKWARD = frozenset(Op) - POINT_TO_POINT - ROOTED  # what is issued while gradients are reduced


def of_world(recording: Recording, world: int) -> Recording:
    """The dumps of a job that is known to have so many ranks: the group of all of them has them as members, where no dump says
    who they are and nobody but those was thought of that left one."""
    known = tuple(range(recording.world_size))
    names = {
        group.name
        for state in recording.backend.values()
        for group in state.groups
        if group.description == _EVERYBODYS and not group.own_members and group.members == known
    }
    if not names or world <= len(known):
        return recording
    everybody = tuple(range(world))

    def larger(group: GroupState) -> GroupState:
        return replace(group, members=everybody) if group.name in names else group

    return replace(
        recording,
        ranks={rank: _with_members(log, names, everybody) for rank, log in recording.ranks.items()},
        backend={
            rank: replace(state, groups=tuple(map(larger, state.groups))) for rank, state in recording.backend.items()
        },
    )


def _with_members(log: RankTrace, names: set[str], members: tuple[int, ...]) -> RankTrace:
    mine = [at for at, row in enumerate(log.groups) if log.text(int(row["key"])) in names]
    groups = np.array(log.groups)
    groups["members"][mine] = len(log.texts)
    return replace(log, groups=groups, texts=(*log.texts, ",".join(map(str, members))))


def beside_a_log(recording: Recording, log: Recording) -> Recording:
    """The dumps with the log of the same job: its lines, what faulthandler printed there, and who is said to have died without
    leaving a dump. Who left one lived on, and what ended it came later."""
    world = max(recording.world_size, log.world_size)
    died = {r: end for r, end in log.job.ends.items() if r not in recording.ranks and not end.ended_by_launcher}
    recording = of_world(recording, world)
    stacks = log.stacks
    if stacks is not None:
        recording = at_their_lines(recording, stacks)
        stacks = replace(stacks, elsewhere=tuple(rank for rank in range(world) if rank not in stacks.ranks))
    return replace(
        recording,
        job=replace(recording.job, world_size=world, ends=died),
        clues=log.clues,
        stacks=stacks,
        troubles=(*recording.troubles, *log.troubles),
    )


def at_their_lines(recording: Recording, stacks: Stacks) -> Recording:
    """The dumps with the lines of the calls that ranks have not completed, where only their stacks show them."""
    if not recording.backend:
        return recording
    return replace(
        recording,
        ranks={
            rank: _at_its_line(log, recording.backend, stacks) if rank in stacks.ranks else log
            for rank, log in recording.ranks.items()
        },
    )


def _at_its_line(log: RankTrace, states: Mapping[int, BackendState], stacks: Stacks) -> RankTrace:
    process = stacks.ranks[log.rank].process
    open_at = np.flatnonzero(np.asarray(log.calls["returned_ns"]) == 0)
    if process is None or len(open_at) != 1 or log.rank not in states or log.site(log.calls[int(open_at[0])]["site"]):
        return log  # of several the stack shows one, and not which
    row = log.calls[int(open_at[0])]
    site = _line_of(Op(int(row["op"])), process)
    return replace(log, seen_at={int(row["seq"]): site}) if site else log


def _line_of(op: Op, process: ProcessStacks) -> SourceLine:
    """The user's line from which a thread of the process has called this operation."""
    threads = sorted(process.threads, key=lambda one: one is not process.main)
    return next((one.user_frame.site for one in threads if one.user_frame and _is_in(op, one)), SourceLine())


def _is_in(op: Op, thread: ThreadStack) -> bool:
    frames = thread.in_python.frames
    inside = frames[: next((at for at, frame in enumerate(frames) if frame.is_users), len(frames))]
    called = {OPERATIONS.get(frame.function) for frame in inside if "/torch/distributed/" in frame.path} - {None}
    if called:
        return op in called
    return bool(inside) and "/torch/autograd/" in inside[0].path and op in _IN_BACKWARD
