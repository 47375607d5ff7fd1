"""Random SPMD programs over several groups, with sends and receives, and one fault planted where a test wants it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.recording import Recording
from distdoctor.testing import Script, recording

HANGS = [check for check in plugins.load().checks.values() if check.family == "hang"]


@dataclass(frozen=True)
class Judged:
    """An incident and the check that explains it."""

    code: str
    ranks: tuple[int, ...]
    incident: Incident

    @property
    def is_tie(self) -> bool:
        return self.incident.is_tie


def judged(found: Recording) -> list[Judged]:
    """What the checks on hangs say of each incident."""
    incidents = {incident.key: incident for incident in Verdict.of(found).incidents}
    findings = examine(found, HANGS).findings if incidents else ()
    told = [Judged(one.code, one.ranks, incidents[key]) for one in findings for key in one.explains]
    assert len(told) == len(incidents), "each incident is explained by one check"
    return told


def groups_of(rng: random.Random, ranks: int) -> dict[str, list[int]]:
    """Sub-groups as jobs make them: halves, strides, pairs, everybody again."""
    found: dict[str, list[int]] = {}
    if ranks >= 4:
        half = ranks // 2
        found |= {"left": list(range(half)), "right": list(range(half, ranks))}
        found |= {f"column{i}": list(range(i, ranks, 2)) for i in range(2)}
    if rng.random() < 0.5:
        found["all"] = list(range(ranks))
    return found


@dataclass(frozen=True)
class Statement:
    """One line of the program, for all ranks."""

    kind: str
    line: int
    op: str = ""
    shape: tuple[int, ...] = ()
    groups: tuple[str, ...] = ("0",)
    root: bool = False
    mode: str = "sync"  # sync, async, native
    tag: int = 0


OPS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "gather")


def body_of(rng: random.Random, groups: dict[str, list[int]], ranks: int) -> list[Statement]:
    """The statements of one training step."""
    body: list[Statement] = []
    for line in range(20, 20 + 3 * rng.randint(2, 6), 3):
        if rng.random() < 0.2 and ranks > 1:
            body.append(Statement("ring" if rng.random() < 0.5 else "pipeline", line, tag=rng.choice((0, 0, 5))))
            continue
        op = rng.choice(OPS)
        names = [("0",)]
        if "left" in groups:
            names += [("left", "right"), ("column0", "column1")]
        if "all" in groups:
            names.append(("all",))
        mode = rng.choice(("sync", "sync", "async", "native")) if op in ("all_reduce", "broadcast") else "sync"
        shape = () if op == "barrier" else (rng.randint(1, 9) * 8, rng.randint(1, 3))
        body.append(Statement("collective", line, op, shape, rng.choice(names), mode=mode))
    return body


def say(script: Script, groups: dict[str, list[int]], statement: Statement, step: int) -> None:
    """Add one statement to the programs of all ranks."""
    ranks = script.world_size
    site = f"train.py:{statement.line} step"
    if statement.kind == "ring":  # everybody posts both, then waits: batch_isend_irecv
        for rank in range(ranks):
            more = {"site": site, "asynchronous": True, "tag": statement.tag}
            script.send(rank, (rank + 1) % ranks, [8], **more).recv(rank, (rank - 1) % ranks, [8], **more)
        script.wait()
        return
    if statement.kind == "pipeline":
        for rank in range(ranks - 1):
            script.recv(rank + 1, rank, [8], site=site, tag=statement.tag)
            script.send(rank, rank + 1, [8], site=f"train.py:{statement.line + 1} step", tag=statement.tag)
        # what was added last to each program is in the right order: a stage receives before it sends on
        return
    for name in statement.groups:
        members = groups.get(name, list(range(ranks)))
        root = members[step % len(members)] if statement.op in ("broadcast", "reduce", "gather") else -1
        script.collective(
            statement.op,
            statement.shape,
            group=name,
            site=site,
            root=root,
            asynchronous=statement.mode == "async",
            native=statement.mode == "native",
        )


FAULTS = ("skip", "extra", "operation", "shape", "dtype", "root", "reduction", "raise", "exit", "kill")
# The codes that explain a planted fault. A skipped call shows as what the rank did instead: it may have left by then, or the
# same call of the next turn may stand in for it until the ends differ.
EXPLAINED_BY = {
    "skip": {"DD101", "DD102", "DD103", "DD106", "DD107", "DD108", "DD109", "DD113"},
    "extra": {"DD101", "DD102", "DD103", "DD106", "DD107", "DD108", "DD109", "DD113"},
    "operation": {"DD102"},
    "shape": {"DD103"},
    "dtype": {"DD104"},
    "root": {"DD106"},
    "reduction": {"DD105"},
    "raise": {"DD110"},
    "exit": {"DD109"},
    "kill": {"DD110"},
}


def program(seed: int, ranks: int, steps: int = 4, fault: str = "", culprit: int = 0) -> Script | None:
    """A program of all ranks, with one fault on one rank in the last but one step. None when this program has no room for it."""
    rng = random.Random(seed)
    groups = groups_of(rng, ranks)
    script = recording(ranks)
    for name, members in groups.items():
        script.group(name, members)
    body = body_of(rng, groups, ranks)
    fitting = [at for at, statement in enumerate(body) if _has_room(statement, fault)]
    if not fitting:
        return None
    where = (steps - 2, rng.choice(fitting)) if fault else (-1, -1)
    for step in range(steps):
        for at, statement in enumerate(body):
            if (step, at) == where and fault in ("raise", "exit", "kill"):
                {"raise": script.raises, "exit": script.exits, "kill": script.killed}[fault](culprit)
            if (step, at) == where and fault == "extra":
                script.collective("barrier", only=culprit, site="train.py:99 maybe_save")
            before = {rank: len(actions) for rank, actions in script.programs.items()}
            say(script, groups, statement, step)
            if (step, at) == where:
                _plant(script, before, fault, culprit)
            if statement.mode == "async" and rng.random() < 0.7:
                script.wait()
        script.wait()
        script.step()
    return script


def _has_room(statement: Statement, fault: str) -> bool:
    sized = statement.op in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather")
    rooms = {
        "skip": statement.kind == "collective",
        "operation": statement.kind == "collective" and statement.op != "all_gather_into_tensor",
        "shape": sized,
        "dtype": sized,
        "root": statement.op in ("broadcast", "reduce", "gather"),
        "reduction": statement.op in ("all_reduce", "reduce") and statement.mode != "native",
    }
    return rooms.get(fault, True)


def _plant(script: Script, before: dict[int, int], fault: str, culprit: int) -> None:
    mine = script.programs[culprit]
    if len(mine) == before[culprit]:
        return
    call = mine[-1]
    members = script.groups[call.fields["group"]][0] if "group" in call.fields else ()
    if fault == "skip":
        mine.pop()
    elif fault == "operation":
        mine[-1] = call.but(op="all_gather_into_tensor", root=-1, shape="[64]")
    elif fault == "shape":
        mine[-1] = call.but(shape="[7, 5]")
    elif fault == "dtype":
        mine[-1] = call.but(dtype="int32")
    elif fault == "root":
        mine[-1] = call.but(root=next(rank for rank in members if rank != call.fields["root"]))
    elif fault == "reduction":
        mine[-1] = call.but(reduce_op="max")
