"""Planted illnesses and clean trainings, each as a real job over gloo at several world sizes: what was said, and was it right.

    python benchmarks/gradient_verdicts.py [--worlds 2,3,4] [--only WORD] [--no-clean] [--no-planted]

The jobs are those of the tests (`tests/replicas.py`, `tests/misuse.py`). A planted case is right in its code, first
step (within one), ranks (of two ranks against each other, both), first parameter and line; `-` where a case has none of it. A
clean one is right when there is no error and no warning. Ranks start from a fork server, one job after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
for folder in ("tests", "tests/checks"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

STREAMS = "collectives,environment,gradients,progress,samples"
ASPECTS = ("code", "step", "ranks", "parameter", "line")


@dataclass(frozen=True)
class Case:
    """One job and what has to be said about it. `odd` are the ranks that a majority exposes; () where all are apart."""

    job: Callable[..., Any]
    code: str
    about: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    odd: tuple[int, ...] = ()
    parameter: str = ""
    words: str = ""
    worlds: tuple[int, ...] = (2, 3, 4)

    @property
    def name(self) -> str:
        about = " ".join(f"{key}={value}" for key, value in self.about.items())
        return f"{self.job.__name__} {about}".strip()

    def ranks(self, world_size: int, *, always: bool) -> tuple[int, ...]:
        """Whom the finding has to name. `always`: two ranks are no tie for this illness."""
        return self.odd if self.odd and (world_size > 2 or always) else tuple(range(world_size))


# Found by what each rank has noted of itself, so two ranks are no tie.
ALONE = ("DD203", "DD205", "DD801")


def planted() -> Iterator[Case]:
    """All planted cases: those of the tests, and more ranks and steps of the same."""
    import test_misuse_jobs
    import test_replicas_jobs
    from jobs import misuse
    from jobs import replicas as jobs

    majority = {jobs.learning_rate_by_rank: (1,)}
    for job, about, code, ranks, step, parameter, words in test_replicas_jobs.ILL:
        odd = ranks if len(ranks) == 1 else majority.get(job, (about.get("who", 1),) if job is jobs.flipped_bit else ())
        yield Case(job, code, about, step, odd, parameter, words)
    for where, who, at in (("weight", 0, 1), ("weight", 1, 5), ("grad", 0, 2), ("grad", 1, 6)):
        bit = (7 * at + who) % 32
        about = {"who": who, "at": at, "where": where, "bit": bit, "element": 91 * at % 640}
        yield Case(
            jobs.flipped_bit, "DD214", about, at + (where == "weight"), (who,), "body.weight", "optimizer.step()"
        )
    for who, at in ((0, 2), (1, 4), (0, 5)):
        about = {"who": who, "at": at}
        yield Case(jobs.edited_weight, "DD203", about, at + 1, (who,), "head.weight", "optimizer.step()")
    for since in (2, 6):
        yield Case(
            jobs.forward_through_module, "DD206", {"since": since}, since, (), "body.weight", "model.module(inputs)"
        )
    yield Case(jobs.never_wrapped, "DD206", words="# nobody averages")
    for where in ("forward", "input", "backward"):
        for who, at in ((1, 3), (0, 1)):
            about = {"where": where, "who": who, "at": at}
            yield Case(jobs.first_nan, "DD801", about, at, (who,), words="backward()")
    for divisor in (1.0, 16.0):
        yield Case(jobs.undivided, "DD208", {"divisor": divisor}, words="# of each micro-step")
    yield Case(jobs.clipped_while_scaled, "DD803", words="# still scaled")
    yield Case(jobs.scaler_by_rank, "DD802", step=3, odd=(1,), words="")
    yield Case(jobs.summed_by_hand, "DD209", step=1, words="# and nobody divides")
    yield Case(jobs.averaged_twice, "DD209", step=1, words="optimizer.step()")
    yield Case(jobs.never_zeroed, "DD212", words="optimizer.step()")
    yield Case(jobs.own_buffers, "DD204", step=1, words="DistributedDataParallel(Counting()")
    for job, about, code, _, _, words, evidence in test_misuse_jobs.ILL:
        first = evidence.get("parameters", [""])[0]
        odd = (1,) if job is misuse.branch_by_rank else ()
        line = "" if words.startswith("def ") else words
        yield Case(job, code, about, evidence.get("step"), odd, first, line, _worlds(job))
    yield Case(misuse.branch_by_rank, "DD210", {"since": 2}, 2, (1,), words="# decided by this rank alone")


def _worlds(job: Callable[..., Any]) -> tuple[int, ...]:
    """Layers of 32 units cannot be split by three."""
    return (2, 4) if job.__name__ in ("split_with_dropout", "tensor_parallel") else (2, 3, 4)


def clean() -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """All clean trainings of the tests, and a few more settings of them."""
    import test_misuse_jobs
    import test_replicas_jobs
    from jobs import replicas as jobs

    yield from test_replicas_jobs.HEALTHY
    yield from test_misuse_jobs.HEALTHY
    yield from ((jobs.accumulated, {"k": 2}), (jobs.plain, {"bucket_cap_mb": 1e-3}), (jobs.sharded, {"mixed": False}))


@dataclass(frozen=True)
class Verdict:
    """What is right about one planted case; None where it has no such thing."""

    marks: tuple[bool | None, ...]
    said: str


def judge(case: Case, world_size: int) -> Verdict:
    """Run the job and hold the first finding against what was planted."""
    from jobs import replicas as gradient_jobs
    from test_replicas_jobs import found

    recording, _ = gradient_jobs.watched(case.job, ranks=world_size, streams=STREAMS, timeout=180, **case.about)
    findings = found(recording)
    first = findings[0] if findings else None
    if first is None or first.code != case.code:
        said = f"{first.code} {first.title}" if first else "nothing"
        return Verdict((False, *(False if wanted else None for wanted in _wanted(case))), said)
    lines = recording.sources.get(first.place.path, "").splitlines()
    line = lines[first.place.line - 1] if 0 < first.place.line <= len(lines) else ""
    listed = first.evidence.get("parameters")
    names = listed if isinstance(listed, list) and listed else [""]
    right = (
        abs(_number(first.evidence.get("step")) - (case.step or 0)) <= 1,
        first.ranks == case.ranks(world_size, always=_alone(case)),
        names[0] == case.parameter,
        case.words in line,
    )
    marks = tuple(mark if wanted else None for mark, wanted in zip(right, _wanted(case), strict=True))
    return Verdict((True, *marks), f"{first.code} {first.ranks_named} {first.title}")


def _number(value: object) -> int:
    return value if isinstance(value, int) else -9


def _alone(case: Case) -> bool:
    """Whether this rank's own record shows it: two ranks are no tie then."""
    return case.code in ALONE or (case.code == "DD214" and case.about.get("where", "weight") == "weight")


def _wanted(case: Case) -> tuple[bool, ...]:
    return case.step is not None, True, bool(case.parameter), bool(case.words)


def run_planted(worlds: Sequence[int], only: str) -> int:
    totals: dict[str, Counter[bool | None]] = {aspect: Counter() for aspect in ASPECTS}
    with_majority: Counter[bool | None] = Counter()
    print(f"{'planted':64}{'ranks':>6}  {'  '.join(ASPECTS)}")
    jobs = 0
    for case in planted():
        for world_size in worlds:
            if world_size not in case.worlds or only not in case.name:
                continue
            try:
                verdict = judge(case, world_size)
            except AssertionError as trouble:
                verdict = Verdict((False,) * len(ASPECTS), str(trouble).strip().splitlines()[-1][:100])
            jobs += 1
            for aspect, mark in zip(ASPECTS, verdict.marks, strict=True):
                totals[aspect][mark] += 1
            if world_size > 2:
                with_majority[verdict.marks[2]] += 1
            words = "".join(_mark(mark, len(aspect) + 2) for mark, aspect in zip(verdict.marks, ASPECTS, strict=True))
            wrong = f"  said: {verdict.said[:110]}" if False in verdict.marks else ""
            print(f"{case.code} {case.name[:58]:59}{world_size:6}  {words.rstrip()}{wrong}", flush=True)
    shares = ", ".join(f"{aspect} {_share(counts)}" for aspect, counts in totals.items())
    print(f"planted: {jobs} jobs; {shares}; ranks with three or more {_share(with_majority)}")
    return sum(counts[False] for counts in totals.values())


def run_clean(worlds: Sequence[int], only: str) -> int:
    from jobs import replicas as gradient_jobs
    from test_replicas_jobs import found

    from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING

    severities: Counter[str] = Counter()
    workloads, jobs, wrong = 0, 0, 0
    for job, about in clean():
        name = f"{job.__name__} {' '.join(f'{key}={value}' for key, value in about.items())}".strip()
        if only not in name:
            continue
        workloads += 1
        for world_size in sorted(set(worlds) & set(_worlds(job))):
            recording, _ = gradient_jobs.watched(job, ranks=world_size, streams=STREAMS, timeout=180, **about)
            findings, jobs = found(recording), jobs + 1
            severities.update(one.severity.word for one in findings if one.severity is not None)
            for one in findings:
                if one.severity in (ERROR, WARNING):
                    wrong += 1
                    print(f"  clean {name} on {world_size} ranks: {one.code} {one.title}", flush=True)
    counts = ", ".join(f"{severities[level.word]} {level.word}s" for level in (ERROR, WARNING, NOTE))
    print(f"clean: {workloads} workloads, {jobs} jobs on {', '.join(map(str, worlds))} ranks: {counts}")
    return wrong


def _mark(mark: bool | None, width: int) -> str:
    return {True: "yes", False: "NO", None: "-"}[mark].ljust(width)


def _share(counts: Counter[bool | None]) -> str:
    asked = counts[True] + counts[False]
    return f"{counts[True]}/{asked}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="2,3,4")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--no-clean", action="store_true")
    parser.add_argument("--no-planted", action="store_true")
    options = parser.parse_args()
    worlds = [int(word) for word in options.worlds.split(",")]
    began = time.perf_counter()
    wrong = 0 if options.no_planted else run_planted(worlds, options.only)
    wrong += 0 if options.no_clean else run_clean(worlds, options.only)
    print(f"{time.perf_counter() - began:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
