"""Flip single bits in the traces of a real run: `python tests/fuzz/flips.py RUN_FOLDER [--flips 1000] [--seed 1] [--unsealed]`.

Each time one bit of one trace, half of them where something is written. What must not happen is printed with the seed that
brings it back: a certain finding that the sound recording does not have, health, a damaged trace that is not named. `--unsealed`:
as if the launcher had been killed, so that nobody noted the checksums; then damage may go unseen, and nothing is certain.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distdoctor import plugins
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.recording.trace.host_file import read_host_file
from distdoctor.recording.trace.run_folder import trace_paths

PLUGINS = plugins.load()
WORD = 8


def unseal(folder: Path) -> None:
    """Leave the run folder as a launcher leaves it that gets SIGKILL."""
    for path in folder.glob("host-*.json"):
        host = read_host_file(path)
        assert host is not None
        path.write_text(replace(host, running=True, exit_code=None, digests={}).to_json())


def certain(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...]]]:
    """What is said to be certain."""
    return {(one.code, one.ranks) for one in diagnosis.findings if one.confidence == CERTAIN}


def examined(folder: Path) -> Diagnosis:
    return diagnose(open_recording(folder), PLUGINS.checks, PLUGINS.remedies)


def place(chance: random.Random, content: bytes) -> int:
    """The number of a bit: anywhere, or in a word that is not zero."""
    at = chance.randrange(len(content))
    if chance.random() < 0.5:
        while not any(content[at - at % WORD : at - at % WORD + WORD]):
            at = chance.randrange(len(content))
    return at * 8 + chance.randrange(8)


def flips(folder: Path, numbers: range) -> Iterator[tuple[int, str, str]]:
    """(number, what was said, what is wrong with that) of each flip. `folder` is spoiled for a moment at a time."""
    sound = examined(folder)
    paths = trace_paths(folder)
    for number in numbers:
        chance = random.Random(number)
        rank = chance.choice(list(paths))
        content = paths[rank].read_bytes()
        bit = place(chance, content)
        spoiled = bytearray(content)
        spoiled[bit // 8] ^= 1 << bit % 8
        paths[rank].write_bytes(spoiled)
        try:
            diagnosis = examined(folder)
        finally:
            paths[rank].write_bytes(content)
        yield number, *judged(diagnosis, sound, rank)


def judged(diagnosis: Diagnosis, sound: Diagnosis, rank: int) -> tuple[str, str]:
    """(what was said, what is wrong with that)."""
    coverage = diagnosis.coverage
    assert coverage is not None
    named = rank in (*coverage.torn, *coverage.unreadable)
    crashed = [one.code for one in diagnosis.not_examined if one.failed]
    more = certain(diagnosis) - certain(sound)
    if more:
        return "", f"certain: {sorted(more)}"
    if diagnosis.healthy:
        return "", "healthy"
    if crashed:
        return "", f"checks failed: {crashed}"
    if not named and not coverage.unsealed:
        return "", f"rank {rank} is not named: {coverage.sentence}"
    return "the damaged trace is named" if named else "nothing is certain, no checksum was noted", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unsealed", action="store_true")
    options = parser.parse_args()
    since, said, wrong = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="distdoctor-flips-") as work:
        folder = Path(work) / "run"
        shutil.copytree(options.folder, folder, ignore=shutil.ignore_patterns("*.sock"))
        if options.unsealed:
            unseal(folder)
        for number, what, trouble in flips(folder, range(options.seed, options.seed + options.flips)):
            said[what] += not trouble
            if trouble:
                wrong += 1
                print(f"{number}: {trouble}", flush=True)
    print(f"{options.flips} bits, {wrong} wrong, {time.monotonic() - since:.0f} s", dict(+said))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
