"""
DD701 saved-wrapper: the checkpoint's keys carry a wrapper's prefix and do not match the module.

What it means    DistributedDataParallel prefixes every name with `module.`, torch.compile with `_orig_mod.`. If saved with the
                 wrapper and loaded without it (or the other way round), no name matches.
Why it hurts     With strict=True the job ends with an error. With strict=False it continues with fresh weights.
How we know      The result of load_state_dict was recorded: every name of the module was missing, or the names differ only by
                 the prefix. Certain.
What to do       Save `model.module.state_dict()`; check the result of strict=False and reject missing names.
When it is fine  A wrapper's state that is loaded into the wrapper again, or not at all: a save alone is never reported.
Source           PyTorch, DDP tutorial, "Save and load checkpoints"; torch.nn.Module.load_state_dict.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import Checkpoints
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_own_error
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import StateLoaded, UncaughtException

_PREFIX = re.compile(r"^(module\.|_orig_mod\.)+")
REJECTED = "load_state_dict rejected a checkpoint whose names differ by a wrapper's prefix"
_FAILED = re.compile(r"Error\(s\) in loading state_dict for (\w+)")


@check("DD701", "saved-wrapper", severity=ERROR)
def examine(checkpoints: Checkpoints | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and log.own_error is not None and _is_wrapped(log.own_error.words):
        yield from_own_error(log, REJECTED, Prescription("save-the-module"))
    if checkpoints is None:
        return
    loads: dict[tuple[SourceLine, str], list[tuple[int, StateLoaded]]] = defaultdict(list)
    for rank, event in checkpoints.events(StateLoaded):
        if event.what == "module" and (_nothing(event) or _by_prefix(event)):
            loads[event.site, event.names[0]].append((rank, event))
    yield from (_not_loaded(found) for found in loads.values())
    yield from _refused(checkpoints)


def _nothing(event: StateLoaded) -> bool:
    return not event.strict and event.own > 0 and event.missing == event.own and event.unexpected > 0


def _by_prefix(event: StateLoaded) -> bool:
    if not event.missing or not event.unexpected:
        return False
    missing, unexpected = event.names[1], event.names[2]
    return _PREFIX.sub("", missing) == _PREFIX.sub("", unexpected)


def _not_loaded(found: list[tuple[int, StateLoaded]]) -> Finding:
    ranks, event = tuple(sorted({rank for rank, _ in found})), found[0][1]
    missing, unexpected = event.names[1], event.names[2]
    reason = "the names differ by a wrapper's prefix" if _by_prefix(event) else "no name matches"
    loaded = event.own - event.missing
    how_many = "loaded nothing" if not loaded else f"loaded {loaded} of {event.own} entries"
    return Finding(
        title=f"load_state_dict of {event.names[0]} {how_many}: {reason} ({unexpected} for {missing})",
        ranks=ranks,
        confidence=CERTAIN,
        place=event.site,
        places=(Place(event.site, ranks, f"loads with strict={event.strict}, {event.missing} names missing"),),
        evidence={"missing": event.missing, "unexpected": event.unexpected, "own": event.own, "first_missing": missing,
                  "first_unexpected": unexpected},
        why=f"{event.missing} of {event.own} names of the module were missing, and {event.unexpected} of the checkpoint were "
        "unexpected; strict=False keeps the module's previous values",
        prescriptions=(Prescription("save-the-module", effect=f"all {event.own} entries are restored"),),
        at_ns=event.at_ns,
    )  # fmt: skip


def _is_wrapped(words: str) -> bool:
    return bool(_FAILED.search(words)) and ('"module.' in words or '"_orig_mod.' in words)


def _refused(checkpoints: Checkpoints) -> Iterator[Finding]:
    wrapped = [(rank, one) for rank, one in checkpoints.events(UncaughtException) if _is_wrapped(one.words)]
    if wrapped:
        ranks, event = tuple(rank for rank, _ in wrapped), wrapped[0][1]
        yield Finding(
            title=REJECTED,
            ranks=ranks,
            confidence=CERTAIN,
            place=event.site,
            places=(Place(event.site, ranks, "loads"),),
            evidence={"error": event.words[:300]},
            why=event.words.partition("\n")[0][:200],
            prescriptions=(Prescription("save-the-module"),),
            at_ns=event.at_ns,
        )


def _job(*names: str, missing: int, unexpected: int) -> Recording:
    from distdoctor.testing.gradients import trained_job

    event = StateLoaded("module", ("Sequential", *names), missing, unexpected, own=4, strict=False)
    return trained_job(2).note(event, site="train.py:20 main").initial().step().recording()


def sick() -> Recording:
    """Nothing of a wrapped model's checkpoint is found."""
    return _job("0.weight", "module.0.weight", missing=4, unexpected=4)


def healthy() -> Recording:
    """A new head, on purpose."""
    return _job("head.weight", "fc.weight", missing=2, unexpected=2)
