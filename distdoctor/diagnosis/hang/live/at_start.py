"""A job that does not begin, told from its stacks: who is in init_process_group, and where those are that have not come."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.recording.rank_set import named

_MAKES_STORE = "_create_c10d_store"
STARTING_SECONDS = 20.0  # importing torch and a first look at the devices, on a slow file system


def seen_at_start(standstill: Stall) -> Iterator[Finding]:
    """What the stacks say about ranks (or agents of other nodes) that have not come."""
    if not standstill.stacks.ranks:
        yield from _waiting_launcher(standstill)
    came = list(standstill.of_kind(Activity.INIT))
    late = [s for s in standstill.standings.values() if s.doing is not Activity.INIT]
    if not came or not _waited_enough(came, late, standstill):
        return
    elsewhere = standstill.stacks.elsewhere
    if nobody_answers(standstill):
        yield _without_a_store(came, standstill)
        return
    missing = tuple(sorted([*(s.rank for s in late), *elsewhere]))
    if not missing or any(standstill.is_moving(s) for s in late) or (elsewhere and _starts_others(came)):
        return
    yield Finding(
        title=f"{'has' if len(missing) == 1 else 'have'} not reached {came[0].call}, "
        f"where {named(s.rank for s in came)} {'waits' if len(came) == 1 else 'wait'}",
        ranks=missing,
        confidence=POSSIBLE if elsewhere or standstill.stacks.copies else LIKELY,
        place=late[0].site if late and late[0].site else came[0].site,
        places=standstill.places(*late),
        evidence={
            "arrived": [s.rank for s in came],
            "missing": list(missing),
            "no process here": list(standstill.stacks.absent),
            "on other hosts": list(elsewhere),
        },
        why=_why(late, standstill),
        prescriptions=(Prescription("start-every-rank", change=_change(late, missing, standstill)),),
    )


def nobody_answers(standstill: Stall) -> bool:
    """Whether every rank of the job still looks for the store, long after a start: whoever is to hold it holds another one, or
    cannot be reached."""
    standings = list(standstill.standings.values())
    whole = len(standings) > 1 and not standstill.stacks.elsewhere
    return whole and all(map(_looks_for_store, standings)) and _waited_enough(standings, [], standstill)


def _looks_for_store(standing: RankActivity) -> bool:
    process = standing.process
    if standing.doing is not Activity.INIT or process is None or process.main is None or process.copied:
        return False
    return process.main.inside("torch/distributed/rendezvous.py", _MAKES_STORE) is not None


def _without_a_store(came: list[RankActivity], standstill: Stall) -> Finding:
    return Finding(
        title=f"all wait for the store in {came[0].call}, and nobody answers",
        ranks=tuple(s.rank for s in came),
        confidence=LIKELY,
        place=came[0].site,
        places=standstill.places(),
        evidence={"arrived": [s.rank for s in came]},
        why=f"their stacks are in {_MAKES_STORE}, which comes back once the store has answered",
        prescriptions=(
            Prescription(
                "start-every-rank",
                change="under torchrun leave MASTER_ADDR and MASTER_PORT as it sets them, for it holds the store; a script that "
                "starts its ranks itself needs no torchrun; else see that rank 0 listens there (`nc -vz HOST PORT`)",
            ),
        ),
    )


def _starts_others(came: list[RankActivity]) -> bool:
    """Whether a rank that waits has child processes at work: a framework that starts the other ranks itself does so from one."""
    return any(child.moved or child.is_busy for one in came for child in one.seen.children)


def _waited_enough(came: list[RankActivity], late: list[RankActivity], standstill: Stall) -> bool:
    """Whether this is no ordinary start. The store is asked again every few milliseconds, so whoever waits for it is never still:
    what counts is how long those stand still that are late, or else the age of the processes that came. A launcher starts all
    ranks of a host together: one that has no process by then has had one, and it will not come."""
    patience = standstill.stacks.patience_seconds
    there = [s for s in late if s.process is not None]
    if there:
        return all(standstill.exceeds_patience(s.still_seconds) for s in there)
    starting = 0.0 if late and standstill.stacks.launcher is not None else STARTING_SECONDS
    return max(s.process.age_seconds for s in came if s.process is not None) >= patience + starting


def _why(late: list[RankActivity], standstill: Stall) -> str:
    parts = []
    if standstill.stacks.absent:
        absent = standstill.stacks.absent
        has = "has" if len(absent) == 1 else "have"
        parts.append(f"{named(absent)} should be running on this host but {has} no process")
    parts += [f"rank {s.rank} {s.words}" for s in late if s.process is not None][:3]
    if standstill.stacks.elsewhere:
        elsewhere = standstill.stacks.elsewhere
        has = "has" if len(elsewhere) == 1 else "have"
        parts.append(f"{named(elsewhere)} {has} no process here: on other hosts run distdoctor hang-dump there")
    return "; ".join(parts)


def _change(late: list[RankActivity], missing: tuple[int, ...], standstill: Stall) -> str:
    there = [s for s in late if s.process is not None and s.site]
    if there:
        where = f"{there[0].site.short}"
        return f"let {named(missing)} reach init_process_group: move the work at {where} after that call"
    if standstill.stacks.elsewhere:
        return (
            f"start {named(missing)}, here or on the other hosts, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE"
        )
    return f"start {named(missing)}, or start the others with a smaller WORLD_SIZE"


def _waiting_launcher(standstill: Stall) -> Iterator[Finding]:
    """torchrun itself waits: the agents of other nodes have not come."""
    launcher = standstill.stacks.launcher
    main = launcher.main if launcher is not None else None
    there = (
        main.inside("", "next_rendezvous", "_rendezvous", "_next_rendezvous", "rendezvous")
        if main is not None
        else None
    )
    if launcher is None or there is None or not standstill.exceeds_patience(launcher.still_seconds):
        return
    yield Finding(
        title=f"torchrun (pid {launcher.pid}) has not started any rank: its rendezvous is waiting for the other nodes",
        confidence=LIKELY,
        evidence={"pid": launcher.pid, "command": launcher.command},
        why=f"its stack is in {there.function}, and there is no rank on this host",
        prescriptions=(
            Prescription(
                "start-every-rank",
                change="start torchrun on every node with the same --nnodes, --rdzv-id and --rdzv-endpoint",
            ),
        ),
    )
