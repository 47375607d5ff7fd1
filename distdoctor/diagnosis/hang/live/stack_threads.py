"""Two threads of one rank inside collectives at the same time, seen in its stack: nothing orders them between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity, activity_of
from distdoctor.diagnosis.hang.live.stack_waits import IN_PAIRS
from distdoctor.diagnosis.hang.live.stall import Stall


@dataclass(frozen=True)
class CrossedThreads:
    """The rank whose threads they are: what its main thread is in, and what another one of its threads is in.

    `one_group`: both calls were given the same group, or none.
    """

    main: RankActivity
    thread: RankActivity
    name: str
    one_group: bool


def crossed_threads(stall: Stall) -> CrossedThreads | None:
    """The first such rank of a job all of whose ranks have long waited in collectives. A thread that waits for a message is none:
    sends and receives find each other by their tags."""
    standings = list(stall.standings.values())
    waits = all(one.doing in (Activity.COLLECTIVE, Activity.BACKWARD) for one in standings)
    if not standings or not waits or not stall.exceeds_patience(stall.waited_seconds):
        return None
    for main in standings:
        if main.process is None:
            continue
        for thread in main.process.threads:
            python = thread.in_python
            if thread.os_id == main.process.pid or python.user_frame is None:
                continue
            beside = activity_of(main.seen, main.process, python, stall.recording.sources)
            in_collective = beside.doing is Activity.COLLECTIVE and beside.op not in IN_PAIRS
            if in_collective and beside.site != main.site:
                return CrossedThreads(main, beside, thread.name, _group(main) == _group(beside))
    return None


def _group(standing: RankActivity) -> str:
    """The group as this process writes it: one object has one address in it."""
    return standing.arguments.get("group", "None")
