"""`distdoctor hang-dump --on HOSTS`: each host looks at its own ranks by the same command, and the looks are put together."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distdoctor.attach.over_hosts import HostAnswer, ask_all
from distdoctor.attach.ways import ways_to
from distdoctor.cli.deliver import notice
from distdoctor.cli.looked_at import LookedAt
from distdoctor.errors import CouldNotLook, NothingToInspect, WrongUse
from distdoctor.recording.merge import by_job, merged
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, Trouble

if TYPE_CHECKING:
    from distdoctor.attach.snapshot import Manner

MOST_NAMED = 8


def look(target: str, called: str, manner: Manner, within: float) -> tuple[list[LookedAt], list[Recording]]:
    """The jobs on these hosts, each with what all of them saw of it.

    NothingToInspect: every host looked, and none of them has a job. CouldNotLook: no host has answered.
    """
    ways = ways_to(target, within)
    answers = ask_all(ways, _words(called, manner), within, heard=_tell)
    silent = [answer for answer in answers if answer.trouble]
    parts = [(answer.host, recording) for answer in answers for recording in answer.recordings]
    if not parts and silent:
        raise CouldNotLook(
            f"none of {len(ways)} hosts could look: {_several([_sentence(answer) for answer in silent])}",
            way_out="Try it on one of them by hand: `distdoctor hang-dump --json --no-keep`.",
        )
    if not parts:
        raise NothingToInspect(
            f"no distributed training job runs on {_several([way.host for way in ways])}",
            way_out="Name the hosts of the job, or examine what is left of it: distdoctor examine.",
        )
    gaps = tuple(Trouble(_sentence(answer), fault="unreadable") for answer in silent)
    idle = [answer.host for answer in answers if answer.is_idle]
    found = [_together(job, gaps, idle) for job in by_job(parts)]
    return [job for job, _ in found], [recording for _, recording in found]


def _words(called: str, manner: Manner) -> list[str]:
    """The command for a host. What it looks at is decided here; what is accepted of it, too."""
    try:
        words = shlex.split(called)
    except ValueError as trouble:
        raise WrongUse(f"--remote-command {called}: {trouble}", way_out="Write it as in a shell.") from trouble
    if not words:
        raise WrongUse("--remote-command is empty", way_out="Leave it out where `distdoctor` is on the PATH.")
    words += ["hang-dump", "--output-format", "json", "--no-keep", "--samples", str(manner.samples)]
    words += ["--interval", str(manner.interval_seconds), "--patience", str(manner.patience_seconds)]
    return [*words, *(["--native"] if manner.native else []), *(["--locals"] if manner.user_locals else [])]


def _together(
    parts: Sequence[tuple[str, Recording]], gaps: Sequence[Trouble], idle: Sequence[str]
) -> tuple[LookedAt, Recording]:
    whole = merged([recording for _, recording in parts])
    whole = replace(whole, troubles=(*whole.troubles, *gaps))
    places = [f"{_ranks(recording)} on {host}" for host, recording in parts]
    about = [f"{_several(places)}, of {whole.world_size}" if whole.world_size else _several(places)]
    about += [f"no job on {_several(idle)}"] if idle else []
    command = whole.job.launcher or shlex.join(whole.job.argv)
    return LookedAt(command, tuple(about), os.getpid(), over_hosts=True), whole


def _ranks(recording: Recording) -> str:
    here = tuple(rank for rank, _ in recording.stacks.processes()) if recording.stacks else ()
    return named(here) if here else "no rank yet"


def _tell(answer: HostAnswer) -> None:
    if answer.trouble:
        notice(_sentence(answer))


def _sentence(answer: HostAnswer) -> str:
    return f"host {answer.host} {answer.trouble}"


def _several(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return f"{', '.join(words[:MOST_NAMED])}{more}"
