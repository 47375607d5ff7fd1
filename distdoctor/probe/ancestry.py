"""Who started this process: a launcher, or a rank of the job that is being recorded.

What a rank starts inherits its environment: helpers, the training behind a wrapper script, and a launcher of a job of its own.
Read from the environments that the processes were started with; what a script changes in its own later is not seen there.
"""

from __future__ import annotations

import os

from distdoctor.probe.interruptions import hand_on

JOB_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what a launcher gives each rank


def is_in_a_job_of_a_rank(variable: str) -> bool:
    """Whether a process above this one is a rank of another job that has the same settings, named by `variable`.

    Asked only where our own agent started the ranks: then whoever has the variable is a rank, or was started by one.
    """
    mine = _environment("self")
    if not mine.get(variable):
        return False
    for pid in ancestors():
        theirs = _environment(str(pid))
        if theirs.get(variable) != mine[variable]:
            return False
        if theirs.get("RANK") and any(theirs.get(name) != mine.get(name) for name in JOB_NAMES):
            return True
    return False


def as_launched(variable: str) -> dict[str, str]:
    """The environment with which a launcher started the rank: this process, or the one above it from which it comes, told by a
    variable that the launcher gives each rank another value of. What a script sets in its own is not in it. {}: none set it."""
    found = mine = _environment("self")
    if not mine.get(variable):
        return {}
    for pid in ancestors():
        theirs = _environment(str(pid))
        if theirs.get(variable) != mine[variable]:
            break
        found = theirs
    return found


def ancestors(pid: int | None = None) -> list[int]:
    """The processes above this one (or `pid`), the nearest first, as far as they can be seen."""
    found: list[int] = []
    above = os.getppid() if pid is None else _parent(pid)
    while above > 1 and above not in found:
        found.append(above)
        above = _parent(above)
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError) as error:
        hand_on(error)
        return 0


def _environment(pid: str) -> dict[str, str]:
    """What the process was started with; {} where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError as error:
        hand_on(error)
        return {}
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
