"""
DD514 recompilation: torch.compile compiles the same function again and again while the job trains.

What it means    A compiled function has guards: shapes, flags and Python values must stay what they were. An input that breaks
                 a guard triggers a recompilation, until torch gives up (recompile_limit, 8) and runs the function uncompiled.
Why it hurts     Each version costs seconds on every rank; if ranks meet new shapes in different steps, the others wait for each
                 of them. After the limit the speed-up is gone, with only a warning in the log.
How we know      The compiler reported every compilation: at least four versions of one function, compiled in at least four
                 different training steps. torch itself names the failed guard.
What to do       Pad to a few fixed lengths (buckets), compile with dynamic=True, or mark the dimension:
                 torch._dynamo.mark_dynamic(inputs, 1). TORCH_LOGS=recompiles prints each reason.
When it is fine  One version each for training, evaluation and the last, smaller batch; many functions compiled once.
Source           torch.compile troubleshooting: recompilation; torch._dynamo.config.recompile_limit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.padding import padded_to_longest
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.recording.source_texts import line_of
from distdoctor.recording.trace.events import Compiled
from distdoctor.testing.rank_trace import TraceBuilder

# `0/2: self.step == 3      # scale = 1 / self.step  # job/train.py:20 in forward (HINT: ...)`, as torch 2.11-2.15 write it.
_GUARD = re.compile(r"(?:^\S+: )?(.+?)\s{2,}# (?P<text>.*?)\s+# (?P<file>\S+):(?P<line>\d+) in (?P<function>\w+)")
_STATE = re.compile(r"(self(?:\.\w+)+) == -?[\d.]+$")  # a number that an object keeps
FEWEST = 4  # versions of one function beyond the first, in as many steps


class Recompiled(NamedTuple):
    """One function that a rank has compiled again and again: its versions after the first."""

    rank: int
    versions: tuple[Compiled, ...]

    @property
    def seconds(self) -> float:
        return sum(version.nanoseconds for version in self.versions) / 1e9

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(version.step for version in self.versions)


@check("DD514", "recompilation", severity=WARNING, live=False, stands_alone=True)
def examine(noted: RankEvents, recording: Recording) -> Iterator[Finding]:
    functions: dict[tuple[int, str], dict[str, Compiled]] = defaultdict(dict)
    for rank, one in noted.events(Compiled):
        frame, _, version = one.compile_id.partition("/")
        if version.split("_")[0] not in ("", "0"):
            known = functions[rank, frame].get(one.compile_id)  # its backward is compiled later, under the same number
            longer = one.nanoseconds + (known.nanoseconds if known is not None else 0)
            functions[rank, frame][one.compile_id] = replace(known or one, nanoseconds=longer)
    worst: dict[int, Recompiled] = {}
    for (rank, _), versions in functions.items():
        again = Recompiled(rank, tuple(versions.values()))
        if len(again.steps) >= FEWEST and (rank not in worst or len(versions) > len(worst[rank].versions)):
            worst[rank] = again
    if worst:
        yield _finding(worst, recording)


def _finding(worst: Mapping[int, Recompiled], recording: Recording) -> Finding:
    ranks = tuple(sorted(worst))
    most = max(worst.values(), key=lambda again: len(again.versions))
    last = next((one for one in reversed(most.versions) if one.reason), most.versions[-1])
    apart = len({again.steps for again in worst.values()}) > 1
    guard = _GUARD.search(last.reason)
    reason = guard[1].strip() if guard else last.reason.partition(": ")[2] or last.reason
    asked = _line_of(guard, recording) if guard else SourceLine()
    padded = padded_to_longest(recording.sources) if "size mismatch" in reason else SourceLine()
    state = _STATE.match(reason)
    return Finding(
        title=f"torch.compile recompiled one function {len(most.versions)} times in {len(most.steps)} steps, "
        f"{most.seconds:.1f} s{' and in different steps on each rank' if apart else ''}",
        ranks=ranks,
        confidence=LIKELY,
        place=asked or padded or last.site,
        places=(
            *((Place(asked, ranks, f"asks for what must stay: `{reason}`"),) if asked else ()),
            *((Place(padded, ranks, "pads each batch to its own length"),) if padded else ()),
            Place(last.site, ranks, "the recompiled function"),
        ),
        evidence={
            "versions": {rank: len(again.versions) + 1 for rank, again in worst.items()},
            "seconds": {rank: round(again.seconds, 2) for rank, again in worst.items()},
            "steps": sorted(most.steps)[:16],
            "guard": reason,
        },
        why=f"{named(ranks)}: " + (f"the last guard that failed: {reason}" if reason else "no guard was named"),
        prescriptions=(
            Prescription(
                "compile-dynamic",
                change=f"keep `{state[1]}` in a tensor (register_buffer), or compute with it outside of the compiled function: "
                "of a number each value is compiled anew"
                if state
                else "",
                effect=f"up to {most.seconds:.1f} s a rank",
            ),
        ),
        at_ns=last.at_ns,
    )


def _line_of(guard: re.Match[str], recording: Recording) -> SourceLine:
    """The line that a guard stands for, as far as it is the user's: torch shortens the path, and cites the line."""
    for path in recording.sources:
        here = line_of(recording.sources, path, int(guard["line"])).strip()
        if path.endswith("/" + guard["file"].rpartition("/")[2]) and here and here.startswith(guard["text"].strip()):
            return SourceLine(path, int(guard["line"]), guard["function"])
    return SourceLine()


def _job(versions: int) -> Recording:
    log = TraceBuilder(0, world_size=1)
    for version in range(versions):
        reason = (
            f"0/0: tensor 'args[0]' size mismatch at index 1. expected 64, actual {64 + version}" if version else ""
        )
        log.note(Compiled(f"0/{version}", reason, version, 2_000_000_000), site="train.py:30 train")
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()})


def sick() -> Recording:
    return _job(8)


def healthy() -> Recording:
    """One version for training, one for evaluation, one for the last batch."""
    return _job(3)
