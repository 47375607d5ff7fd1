"""What each rank asked init_process_group for, and whether the ranks can find each other at all with that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.events import InitBegun, InitDone


@dataclass(frozen=True)
class InitCall:
    """One rank inside init_process_group. `process` is the rank that the launcher gave it, `rank` the one that it asked for
    (-1: not known), `size` the world size it asked for (0: not known), `address` where it looks for the others. `launchers_port`
    is not 0 where that is a store that nobody holds, because the launcher holds its own; `launched` are the launcher's ranks."""

    process: int
    rank: int
    size: int
    address: str
    site: SourceLine
    launchers_port: int = 0
    launched: int = 0


@dataclass(frozen=True)
class Misfit:
    """Ranks that cannot meet. `ranks` are those that are missing, or that look elsewhere; `text` opens with what happens."""

    ranks: tuple[int, ...]
    site: SourceLine
    text: str
    change: str


def waiting_inside(timelines: Sequence[Timeline]) -> list[InitCall]:
    """The calls of init_process_group that have not come back."""
    found = []
    for timeline in timelines:
        begun = list(timeline.log.noted(InitBegun))
        if len(begun) > sum(1 for _ in timeline.log.noted(InitDone)):
            last = begun[-1]
            asked = (last.rank, last.world_size, last.address, last.site)
            found.append(InitCall(timeline.rank, *asked, last.launchers_port, last.launched))
    return found


def inside_again(facts: Collectives) -> list[InitCall]:
    """The calls of init_process_group that all ranks of a new world are in, and that are not the first ones of these ranks; []
    where somebody is missing, or for the first time."""
    inside = waiting_inside(list(facts.timelines.values()))
    sizes = {call.size for call in inside}
    again = all(facts.timelines[call.process].log.has_noted(InitDone) for call in inside)
    return inside if again and len(sizes) == 1 and 1 < len(inside) == sizes.pop() else []


def misfit(facts: Collectives) -> Misfit | None:
    """Why the ranks inside init_process_group cannot meet; None when nothing speaks against it."""
    inside = waiting_inside(list(facts.timelines.values()))
    if not inside:
        return None
    return (
        _nobody_holds(inside)
        or _sizes_differ(inside)
        or _rank_used_twice(inside)
        or _other_size(inside, _launched(facts))
        or _apart(inside)
    )


def _launched(facts: Collectives) -> int:
    """How many ranks the launcher has started, as far as every one of them has shown itself; 0 when that is not known."""
    started = len(facts.timelines)
    return started if facts.recording.job.world_size == started else 0


def _nobody_holds(inside: list[InitCall]) -> Misfit | None:
    """Under torchrun no rank holds a store: where the script names another port, whoever goes by that waits for nobody."""
    there = [call for call in inside if call.launchers_port]
    if not there:
        return None
    first = there[0]
    ranks = tuple(sorted(call.process for call in there))
    text = f"{'wait' if len(ranks) > 1 else 'waits'} for a store at {first.address} that nobody holds: torchrun's is at port "
    text += str(first.launchers_port)
    if len(there) < len(inside):
        others = [call.process for call in inside if not call.launchers_port]
        text += f", where {named(others)} {'wait' if len(others) > 1 else 'waits'}"
    if 0 < first.launched < first.size:  # the script starts its ranks itself
        change = "start the script without torchrun: it starts its ranks itself (`distdoctor run -- python SCRIPT`)"
    else:
        change = (
            "leave MASTER_ADDR and MASTER_PORT as torchrun sets them: take out the lines of the script that set them"
        )
    return Misfit(ranks, first.site, text, change)


def _sizes_differ(inside: list[InitCall]) -> Misfit | None:
    by_size: dict[int, list[InitCall]] = defaultdict(list)
    for call in inside:
        if call.size:
            by_size[call.size].append(call)
    if len(by_size) < 2:
        return None
    usual = max(by_size, key=lambda size: (len(by_size[size]), size))
    odd = [call for size, calls in by_size.items() if size != usual for call in calls]
    sizes = ", ".join(f"{named(c.process for c in calls)} world_size={size}" for size, calls in sorted(by_size.items()))
    ranks = tuple(sorted(call.process for call in odd))
    text = f"init_process_group cannot complete: {sizes}"
    return Misfit(ranks, odd[0].site, text, "pass the same world_size on every rank, or none: torchrun sets WORLD_SIZE")


def _rank_used_twice(inside: list[InitCall]) -> Misfit | None:
    used = Counter(call.rank for call in inside if call.rank >= 0)
    twice = [rank for rank, times in used.items() if times > 1]
    if not twice:
        return None
    size = max(call.size for call in inside)
    missing = tuple(rank for rank in range(size) if rank not in used)
    same = [call for call in inside if call.rank == twice[0]]
    text = f"{len(same)} processes call init_process_group as rank {twice[0]}"
    text += f", so {named(missing)} of {size} never {'joins' if len(missing) == 1 else 'join'}" if missing else ""
    change = "take the rank from RANK, which the launcher sets for each process, not from a variable that is the same for all"
    return Misfit(missing or (twice[0],), same[-1].site, text, change)


def _other_size(inside: list[InitCall], launched: int) -> Misfit | None:
    size = inside[0].size
    if not launched or size <= launched or len(inside) < launched:
        return None
    known = {call.rank for call in inside}
    missing = tuple(rank for rank in range(size) if rank not in known)
    text = f"init_process_group waits for {size} ranks (world_size={size}), but the launcher has started {launched}"
    return Misfit(
        missing, inside[0].site, text, f"start {size} ranks, or leave world_size to WORLD_SIZE ({launched} here)"
    )


def _apart(inside: list[InitCall]) -> Misfit | None:
    by_address: dict[str, list[int]] = defaultdict(list)
    for call in inside:
        by_address[call.address].append(call.process)
    if len(by_address) < 2 or "" in by_address:
        return None
    where = ", ".join(f"{named(ranks)} at {address}" for address, ranks in by_address.items())
    ranks = tuple(sorted(call.process for call in inside))
    change = (
        "give every rank one address: MASTER_ADDR and MASTER_PORT as the launcher set them, or one store made by rank 0"
    )
    return Misfit(ranks, inside[0].site, f"the ranks look for each other at different addresses: {where}", change)
