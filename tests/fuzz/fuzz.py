"""Fuzz `examine` with damaged recordings: `python tests/fuzz/fuzz.py RUN_FOLDER --inputs 100000 --seed 1`, or `--family log`,
`ras-text`, `ras-json`, `dumps`, `clogs`, `stacks` without a folder.

Each input is a copy of a real run folder, a log, what NCCL's RAS prints or a folder of dumps, with one to five mutations, read
and rendered in this process under a limit of memory and time. What must not happen is printed with the seed that brings it back:
a crash, a hang, memory, health out of damage.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent))

from files import FILES
from mutate import MUTATIONS
from texts import FAMILIES as TEXTS

from distdoctor import plugins
from distdoctor.errors import DoctorError
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.recording import source_texts
from distdoctor.recording.checkpoint.contents import is_checkpoint, read_contents
from distdoctor.report import json_report, text
from distdoctor.report.checkpoint import as_text, as_values

MOST_SECONDS = 5
MOST_WAITING_SECONDS = 60
MOST_BYTES = 512 << 20
FAMILIES = {**TEXTS, **FILES}
PLUGINS = plugins.load()


class TooLong(BaseException):
    """An input took longer than it may."""


def wrong(seed: Path, number: int, work: Path) -> str:
    """What went wrong with one input, "" when nothing did."""
    chance = random.Random(number)
    folder = work / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(seed, folder, ignore=shutil.ignore_patterns("*.sock"))
    names = []
    for mutation in chance.choices(MUTATIONS, k=chance.choice((1, 1, 2, 3))):
        try:
            mutation(chance, folder)
        except (OSError, ValueError, IndexError, RecursionError):
            continue  # an earlier mutation has taken the file away
        names.append(mutation.__name__)
    return _said(names, *judged(folder, lambda: is_damaged(seed, folder)))


def wrong_text(family: str, number: int, work: Path) -> str:
    """The same of what is no run folder; with it, damage can make anything of anything, so health is no fault."""
    folder = work / "texts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path, names = FAMILIES[family](random.Random(number), folder)
    return _said(names, *judged(path, lambda: False))


def _said(names: list[str], *troubles: str) -> str:
    return "; ".join(f"{'+'.join(names)}: {trouble}" for trouble in troubles)


def judged(path: Path, damaged: Callable[[], bool]) -> Iterator[str]:
    """What goes wrong when `path` is examined."""
    since, held = time.process_time(), memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this input
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)  # of processor time: other jobs of the machine are not to blame
    signal.setitimer(signal.ITIMER_REAL, MOST_WAITING_SECONDS)
    try:
        yield from _listed(path) if is_checkpoint(path) else _diagnosed(path, damaged)
    except DoctorError:
        pass
    except TooLong:
        yield f"more than {MOST_SECONDS} s"
    except Exception as error:
        yield f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    if time.process_time() - since > MOST_SECONDS + 1:  # the alarm was not heard
        yield f"much more than {MOST_SECONDS} s"
    if memory("VmHWM") - held > MOST_BYTES:
        yield f"more than {MOST_BYTES >> 20} MiB"


def _listed(path: Path) -> Iterator[str]:
    contents = read_contents(path)
    as_text(contents)
    json.dumps(as_values(contents))
    yield from ()


def _diagnosed(path: Path, damaged: Callable[[], bool]) -> Iterator[str]:
    diagnosis = diagnose(open_recording(path), PLUGINS.checks, PLUGINS.remedies)
    said = text.render(diagnosis)
    json_report.render(diagnosis)
    crashed = [one.code for one in diagnosis.not_examined if one.failed]
    if (diagnosis.healthy or said.startswith("healthy")) and damaged():
        yield "healthy"
    elif crashed:
        yield f"checks failed: {crashed}"


def is_damaged(seed: Path, folder: Path) -> bool:
    """Whether a rank's trace is gone or holds other bytes than it did: a changed byte is seen as long as its checksum, which the
    launcher has kept, is there as well."""
    kept = all((folder / path.name).read_bytes() == path.read_bytes() for path in seed.glob("host-*.json"))
    for path in seed.glob("*.trace"):
        copy = folder / path.name
        if not copy.is_file() or copy.stat().st_size != path.stat().st_size:
            return True
        if kept and copy.read_bytes() != path.read_bytes():
            return True
    return False


def fuzz(examined: Callable[[int, Path], str], numbers: range) -> Iterator[tuple[int, str]]:
    """(number, what went wrong) of each input with which something did."""

    queued = 0.0

    def too_long(number: int, frame: FrameType | None) -> None:
        nonlocal queued
        before, queued = queued, queued_seconds()
        if (
            number == signal.SIGALRM and queued - before > MOST_WAITING_SECONDS / 2
        ):  # it waited for a core and for nothing else
            signal.setitimer(signal.ITIMER_REAL, MOST_WAITING_SECONDS)
        else:
            raise TooLong

    before = {number: signal.signal(number, too_long) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        with tempfile.TemporaryDirectory(prefix="distdoctor-fuzz-") as work:
            for number in numbers:
                queued = queued_seconds()
                trouble = examined(number, Path(work))
                if trouble:
                    yield number, trouble
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def queued_seconds() -> float:
    """How long this process has been ready to run while others had the cores; 0 where the kernel does not count it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def memory(which: str) -> int:
    """The bytes that this process holds (VmRSS) or held at most (VmHWM); getrusage would say what its parent held when it
    started this one."""
    [kibibytes] = re.findall(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of family run: a run folder")
    parser.add_argument("--family", choices=["run", *FAMILIES], default="run")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    since, kinds = time.monotonic(), Counter[str]()
    source_texts.redacted_source = cache(source_texts.redacted_source)  # every input has the same sources
    if options.family == "run" and options.folder is None:
        parser.error("a run folder is needed")
    examined = partial(wrong, options.folder) if options.family == "run" else partial(wrong_text, options.family)
    for number, trouble in fuzz(examined, range(options.seed, options.seed + options.inputs)):
        kinds[trouble.rpartition(": ")[2][:60]] += 1
        print(f"{number}: {trouble}", flush=True)
    kept = memory("VmRSS") >> 20
    print(
        f"{options.inputs} inputs, {sum(kinds.values())} wrong, {kept} MiB kept, {time.monotonic() - since:.0f} s",
        dict(kinds),
    )
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main())
