"""A bug in the probe, one function after the other: is the training the same to the last bit, and does the recording say so?

    python benchmarks/probe_bugs.py [--kinds error,memory,slow,interrupt] [--results FILE] [--part 1/2] [--inventory]

Every function of distdoctor.probe that one of the trainings of tests/jobs/probe_bug_trainings.py calls is broken from one of its
calls on, in the quickest training that calls it. What each rank computes, its exit code and what it writes to standard error have
to be as without the bug; one more line may be written. The recording has to say that something is missing. The kinds: an error, a
MemoryError, a rest, and a signal whose handler is the program's and raises, which the program has to get.

This process imports torch once and forks the ranks, which end as a program ends. So a job takes a second, not ten. Several
functions are tried in one job. What counts of it is a function that was called with its bug, of whose bug the recording speaks by
name; the others are tried in smaller lots and at last alone, and so are all of a lot that shows something. Of the signals one
strikes in a job: `--sample 5` tries only every fifth function with one. A training that has not ended after a minute is tried
once more by itself, with a quarter of an hour.

Started several times with one FILE and another part each, it uses several cores; what FILE has already is not tried again.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from jobs.probe_bug_runs import PATIENT_SECONDS, PROBE, Outcome, difference, module_name, outcome, prepare
from jobs.probe_bug_trainings import TRAININGS
from jobs.probe_bugs import KINDS, TELLING, Bug

TOGETHER = {  # in one job, the rest of them in lots of the next size; rests last 0.08 s each and stop nothing
    "error": (12, 4, 1),
    "memory": (12, 4, 1),
    "slow": (40, 1),
    "interrupt": (1,),
}


@dataclass(frozen=True)
class Tried:
    """What one bug came to: `wrong` is what the training noticed of it, "" for nothing."""

    kind: str
    function: str
    training: str
    from_call: int
    wrong: str = ""
    untold: bool = False

    @property
    def bug(self) -> tuple[str, str, int]:
        return self.kind, self.function, self.from_call

    def __str__(self) -> str:
        return f"{self.kind} in {self.function} ({self.training}): {self.wrong or 'the recording says nothing of it'}"


@dataclass
class Sweep:
    """The trainings without a bug, and which of them is the quickest to call a function."""

    from_call: int
    plain: dict[str, Outcome] = field(default_factory=dict)  # without a probe
    sound: dict[str, Outcome] = field(default_factory=dict)  # with one that has no bug
    quickest: dict[str, str] = field(default_factory=dict)

    def learn(self, trainings: Sequence[str]) -> bool:
        """Run them without a bug. False in a rank, which is over."""
        for training in trainings:
            for bug, kept in ((None, self.plain), (Bug(frozenset(), 1), self.sound)):
                found = outcome(training, bug, PATIENT_SECONDS)
                if found is None:
                    return False
                kept[training] = found
            print(self._described(training), flush=True)
        for training in sorted(trainings, key=lambda name: -self.sound[name].seconds):
            for function, count in self.sound[training].calls.items():
                if count >= self.from_call:
                    self.quickest[function] = training
        return True

    def _described(self, training: str) -> str:
        plain, sound = self.plain[training], self.sound[training]
        words = [f"{training}: {plain.seconds:.1f} s, {len(sound.calls)} functions"]
        words += ["a recording with trouble"] if sound.told else []
        words += [wrong] if (wrong := difference(sound, plain, sound)) else []
        words += [] if all(plain.digests) else ["without a result: " + " ".join(plain.errors[0][-3:])]
        return ", ".join(words)

    def tried(self, kind: str, functions: Sequence[str]) -> Iterator[Tried]:
        """Each of the functions with a bug of this kind. It ends early in a rank, which is over."""
        for training in sorted({self.quickest[function] for function in functions}):
            waiting = [function for function in functions if self.quickest[function] == training]
            for size in TOGETHER[kind]:
                left: list[str] = []
                for lot in lots(waiting, size):
                    bug = Bug(frozenset(lot), self.from_call, kind)
                    found = outcome(training, bug)
                    if found is not None and None in found.exits and len(lot) == 1:
                        found = outcome(training, bug, PATIENT_SECONDS)
                    if found is None:
                        return
                    alone = [] if len(lot) == 1 else self._to_be_tried_again(kind, lot, training, found)
                    left += alone
                    wrong = self._difference(found, training)
                    untold = not found.told and kind in TELLING
                    for function in set(lot) - set(alone):
                        yield Tried(kind, function, training, self.from_call, wrong, untold)
                waiting = left

    def _to_be_tried_again(self, kind: str, lot: Sequence[str], training: str, found: Outcome) -> list[str]:
        """All where something is wrong, or else those that another bug has kept from being called, or from being told."""
        if self._difference(found, training):
            return list(lot)
        hit = {function for function in lot if found.calls[function] >= self.from_call}
        return sorted(set(lot) - (hit & found.named if kind in TELLING else hit))

    def _difference(self, found: Outcome, training: str) -> str:
        return difference(found, self.plain[training], self.sound[training])


def lots(functions: Sequence[str], size: int) -> list[list[str]]:
    """So many at once, of other modules where possible: one stream's trouble ends that stream alone."""
    count = -(-len(functions) // size)
    return [sorted(functions)[first::count] for first in range(count)]


def functions_of_the_probe() -> list[str]:
    """Every function of the probe by the name that the planting gives it, planted or not."""

    def walk(node: ast.AST, within: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            inner = f"{within}.{child.name}" if named else within  # type: ignore[attr-defined]
            if isinstance(child, ast.FunctionDef):
                yield inner
            yield from walk(child, inner)

    return [
        f"{module_name(path)}:{name[1:]}"
        for path in sorted(PROBE.rglob("*.py"))
        for name in walk(ast.parse(path.read_text()), "")
    ]


def kept(results: Path | None) -> list[Tried]:
    """What earlier runs, and other parts of this one, have left there."""
    if results is None or not results.exists():
        return []
    return [Tried(**json.loads(line)) for line in results.read_text().splitlines()]


def keep(results: Path, tried: Tried) -> None:
    with results.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(tried)) + "\n")


def table(tried: Iterable[Tried]) -> Iterator[str]:
    """One row a kind, then what is wrong."""
    yield "| kind | functions | reach the training | not told |\n|---|---:|---:|---:|"
    everything = list(tried)
    for kind in KINDS:
        mine = [one for one in everything if one.kind == kind]
        if mine:
            untold = sum(one.untold for one in mine) if kind in TELLING else "-"
            yield f"| {kind} | {len(mine)} | {sum(bool(one.wrong) for one in mine)} | {untold} |"
    yield from map(str, (one for one in everything if one.wrong or one.untold))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", default="", help="functions in whose names one of these is")
    parser.add_argument("--training", default="", help="these trainings alone")
    parser.add_argument("--from-call", type=int, default=1)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth function, beginning with the Kth")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="a signal in every Nth function only")
    parser.add_argument("--results", type=Path, help="a line for each bug is added to this file")
    parser.add_argument("--inventory", action="store_true", help="list the functions that no training calls; try none")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    trainings = [name for name in TRAININGS if name in (asked.training or name).split(",")]
    if os.environ.get("DISTDOCTOR_PROBE") is None:  # ranks look for it in what their parent was started with
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "DISTDOCTOR_PROBE": "/", "DISTDOCTOR": "0"})
    prepare(trainings)
    sweep, here = Sweep(asked.from_call), os.getpid()
    if not sweep.learn(trainings):
        return
    if asked.inventory:
        everything = functions_of_the_probe()
        print(*sorted(set(everything) - sweep.quickest.keys()), sep="\n")
        print(f"{len(everything)} functions, {len(sweep.quickest)} called")
        return
    words = [word for word in asked.only.split(",") if word]
    wanted = sorted(name for name in sweep.quickest if not words or any(word in name for word in words))
    number, parts = map(int, asked.part.split("/"))
    done = {one.bug for one in kept(asked.results)}
    found: list[Tried] = []
    for kind in asked.kinds.split(","):
        mine = wanted[number - 1 :: parts][:: asked.sample if kind == "interrupt" else 1]
        left = [name for name in mine if (kind, name, asked.from_call) not in done]
        for one in sweep.tried(kind, left):
            found.append(one)
            if asked.results is not None:
                keep(asked.results, one)
            if one.wrong or one.untold:
                print(one, flush=True)
        if os.getpid() != here:
            return
    everything_tried = kept(asked.results) or found
    print(*table(everything_tried), sep="\n")
    sys.exit(1 if any(one.wrong or one.untold for one in everything_tried) else 0)


if __name__ == "__main__":
    main()
