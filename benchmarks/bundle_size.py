"""How many bytes a rank the bundle of one host takes, by job, and where they are.

    python benchmarks/bundle_size.py [RUN_FOLDER ...] [--ranks 2 4 8]

Without folders, trainings of so many ranks on one host are recorded first (`distdoctor run --strategy ddp`). Of each section: the
bytes of its columns when they are compressed alone, so that the sum is a little more than the bundle's; `words` are the texts,
environments and whatever else is no record.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distdoctor.recording.bundle import MAGIC, pack, unpack
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.run_folder import read_run

LARGEST = 8  # sections that are shown


def bytes_of_sections(data: bytes) -> Counter[str]:
    """Of a bundle."""
    bundle = msgspec.msgpack.decode(lzma.decompress(data[len(MAGIC) + 1 :]))
    columns, following, found = bundle.pop("columns"), 0, Counter[str]()
    for name in dict.fromkeys(name for rank in bundle["ranks"] for name in rank["sections"]):
        listed = [rank["sections"][name][2] for rank in bundle["ranks"] if name in rank["sections"]]
        new = sum(number == 0 for numbers in listed for number in numbers)
        found[name] = len(lzma.compress(b"".join(columns[following : following + new]), format=lzma.FORMAT_ALONE))
        following += new
    found["words"] = len(lzma.compress(msgspec.msgpack.encode(bundle), format=lzma.FORMAT_ALONE))
    return found


def measure(name: str, recording: Recording) -> None:
    """Print one line."""
    ranks = len(recording.ranks)
    began = time.process_time()
    data = pack(recording)
    packed = time.process_time()
    unpack(data, name)
    beside = len(pack(recording, {}))
    seconds = f"{packed - began:.2f} / {time.process_time() - packed:.2f} s"
    largest = ", ".join(
        f"{section} {size / ranks:.0f}" for section, size in bytes_of_sections(data).most_common(LARGEST)
    )
    print(
        f"{name:24} {ranks:3} ranks {len(data) / ranks:5.0f} B a rank, {beside / ranks:5.0f} where other hosts have the "
        f"alike parts; packed / unpacked in {seconds}: {largest}",
        flush=True,
    )


def recorded(ranks: int) -> Recording:
    """A healthy training."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--strategy", "ddp", "--nproc", str(ranks), "--run-dir", f"{folder}/run"]
        subprocess.run([sys.executable, "-m", "distdoctor", *command], cwd=folder, check=True, capture_output=True)
        return read_run(Path(folder) / "run")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    asked = parser.parse_args(arguments)
    for folder in asked.folders:
        measure(str(folder)[-40:], read_run(folder))
    for ranks in asked.ranks if not asked.folders else ():
        measure(f"--strategy ddp --nproc {ranks}", recorded(ranks))


if __name__ == "__main__":
    main()
