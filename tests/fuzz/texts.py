"""Job logs, what NCCL's RAS prints, torchcomms' clog, and flight recorder dumps, damaged by what they are made of: lines,
words, numbers, values, opcodes of pickles."""

from __future__ import annotations

import copy
import json
import pickletools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # by hand pytest has not put it there
sys.path.insert(0, str(Path(__file__).parent.parent / "recording"))

import test_clog
import test_job_log
import test_log_ends
import test_log_prefixes
import test_ras
import test_stack_files

DUMPS = Path(__file__).parent.parent / "recordings/flight_recorder"
LARGEST = 4 << 20  # characters that a line may grow to
MOST_VALUES = (
    1 << 18
)  # that repeating a list may make of a document: repeated twice, 500 times each, one takes minutes to write
NUMBERS = ("0", "-1", "9" * 30, "9" * 5000, "1e308", "²", "٣", "0x10", "18446744073709551616", "NaN", "")
VALUES: tuple[Any, ...] = (
    None, -1, 10**30, 1e308, float("nan"), "²", "x" * 10_000, [], {}, [[]], True, "\udce9", "\x1b[2J", [0] * 1000
)  # fmt: skip
# What the readers look for: a word of another line, another format or another place.
WORDS = (
    "[rank1]: ", "Traceback (most recent call last):", "RuntimeError: ", "rank : 2", "exitcode : -9 (pid: 1)", "Signal 9",
    "keys: /default_pg/0//cpu//0/3", "op.preamble.length <= op.nbytes. 400 vs 200", "Connection closed by peer", "Errors",
    "Warnings", "DEAD", "MISMATCH", "INCOMPLETE", "#0-0 (27a079b828ff1a75) MISMATCH", "Rank 3 has launched up to operation 6",
    "7 ranks have launched up to operation 6650", "Process 1 on node 10.0.0.1 managing GPU 5", "Communicators... (0.00s)",
    "Missing communicator data from 1 rank", "The missing ranks: 1, 2", '"key":1,', "Root Cause (first observed failure):",
    '  File "/job/train.py", line 31, in main', "|comm=tp", "|ranks=1,0,1", "split|parent=tp|child=world|ranks=2,0",
    "NCCL DIAG [INFO] p2p: read mismatch srcRank=0 srcCudaDev=0 dstRank=1 dstCudaDev=1", "NCCL DIAG [OK]", "rank(s) {1,2,3}",
    "new_comm|comm=tp|rank=1|world_size=4096", "C1|sig|send|in_count=4|dtype=f32|peer=9|comm=world",
)  # fmt: skip
OPCODES = (b"", b"2", b"(", b"]", b"}", b"\x85", b"\x86", b"0", b"r\xff\xff\xff\x0f", b"R", b"b")
PIECES = ('"key":1,', "a ", " ", "9", "[rank0]: ", "1, ", "(", "#0-0 (", "rank : ", "\t", "\u202e")


def _spliced(chance: random.Random, text: str, piece: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + piece + text[at:]


def line_changed(chance: random.Random, text: str) -> str:
    lines = text.split("\n")
    one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    how = chance.choice(("drop", "double", "swap", "many"))
    if how == "drop":
        del lines[one]
    elif how == "swap":
        lines[one], lines[two] = lines[two], lines[one]
    else:
        lines[one:one] = [lines[two]] * (1 if how == "double" else min(2000, LARGEST // (len(lines[two]) + 1)))
    return "\n".join(lines)


def number_changed(chance: random.Random, text: str) -> str:
    at = [i for i, sign in enumerate(text) if sign.isdigit()]
    if not at:
        return text
    start = chance.choice(at)
    end = start
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[:start] + chance.choice(NUMBERS) + text[end:]


def word_put_in(chance: random.Random, text: str) -> str:
    return _spliced(chance, text, chance.choice(("", "\n")) + chance.choice(WORDS) + chance.choice(("", "\n")))


def long_line(chance: random.Random, text: str) -> str:
    return _spliced(chance, text, chance.choice(PIECES) * chance.choice((100, 5_000, 40_000)))


def odd_sign(chance: random.Random, text: str) -> str:
    return _spliced(chance, text, chance.choice(("\x00", "\x1b[2J", "\r", "\udcff", "\u2028", "\ufeff", "]0;x\a")))


def cut_off(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text) + 1)]


def another_behind(chance: random.Random, text: str) -> str:
    return text + chance.choice(list(LOGS) + list(RAS_TEXTS))


def _values(content: Any) -> int:
    """How many values a document holds, itself included."""
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return 1 + sum(map(_values, inner))


def put_in(chance: random.Random, content: Any) -> None:
    """Another value at a random place of nested lists and tables."""
    where: Any = content
    while isinstance(where, dict | list) and where:
        key = chance.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], dict | list) or not where[key] or chance.random() < 0.2:
            where[key] = copy.deepcopy(chance.choice(VALUES))  # the next place may be inside it
            break
        if isinstance(where[key], list) and chance.random() < 0.2:
            where[key] = where[key] * min(chance.choice((0, 2, 500)), MOST_VALUES // _values(content))
            break
        where = where[key]


def value_changed(chance: random.Random, text: str) -> str:
    """Another value at a random place of a JSON document."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    put_in(chance, content)
    return json.dumps(content)


def nested(chance: random.Random, text: str) -> str:
    return _spliced(chance, text, chance.choice(("[", '{"a":', "(", "]")) * chance.choice((10, 5_000, 200_000)))


def opcode_changed(chance: random.Random, data: bytes) -> bytes:
    """An operation of a pickle left out, doubled, swapped for another or followed by one that copies, marks or builds."""
    try:
        starts = [at for _, _, at in pickletools.genops(data) if at is not None]
    except ValueError:
        return data
    one, two = chance.choice(starts), chance.choice(starts)
    ends = dict(zip(starts, [*starts[1:], len(data)], strict=True))
    extra = chance.choice(
        (b"", data[two : ends[two]], b"2", b"(", b"]", b"}", b"\x85", b"\x86", b"0", b"r\xff\xff\xff\x0f", b"R", b"b")
    )
    keep = data[one : ends[one]] if chance.random() < 0.5 else b""
    return data[:one] + keep + extra * chance.choice((1, 1, 40)) + data[ends[one] :]


def byte_changed(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data)) if data else 0
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def bytes_cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _ras_json() -> tuple[str, ...]:
    ranks = [test_ras.rank(number) for number in range(4)]
    behind = [test_ras.rank(number, AllReduce=99 if number == 2 else 100) for number in range(4)]
    return tuple(
        json.dumps(content)
        for content in (
            test_ras.answer(behind),
            test_ras.answer(ranks[:3], [test_ras.missing(3, dead=True)]),
            test_ras.answer(ranks[:3], [test_ras.missing(3, dead=False)]),
        )
    )


# As NCCL 2.31 prints them in a job of torchrun's.
DIAGNOSTICS = "".join(f"[rank0]:node042:12345 NCCL DIAG {line}\n" for line in test_job_log.DIAGNOSTICS.splitlines())
LOGS = (
    test_job_log.PREAMBLE, test_job_log.STORE, test_job_log.PEER, test_job_log.TORCHRUN,
    test_job_log.PREAMBLE + test_job_log.PEER + test_job_log.TORCHRUN, DIAGNOSTICS, DIAGNOSTICS + test_job_log.PEER,
    test_log_ends.KERNEL + test_log_ends.LABELLED + test_log_ends.SLURM,
    test_log_prefixes.of_two_nodes("{node}: [default{local}]:"),
    test_log_ends.XID.format(code=79, words="GPU has fallen off the bus.") + test_job_log.TORCHRUN,
    (test_stack_files.ALONE + test_stack_files.WAITS).format(prefix="") + test_stack_files.TABLE.format(second="07"),
    test_stack_files.CRASH + test_stack_files.CRASHED,
)  # fmt: skip
RAS_TEXTS = (
    test_ras.TABLE + test_ras.BEHIND, test_ras.TABLE + test_ras.DEAD,
    "Mon Nov 24 14:05:00 UTC 2025\n" + 2 * (test_ras.TABLE + test_ras.BEHIND),
)  # fmt: skip
RAS_JSON = _ras_json()
TEXT = (line_changed, number_changed, word_put_in, long_line, odd_sign, cut_off, another_behind)
CLOG = (*TEXT, number_changed, number_changed)
JSON = (value_changed, value_changed, value_changed, nested, number_changed, cut_off, odd_sign)
PICKLE = (opcode_changed, opcode_changed, byte_changed, bytes_cut)
TextMutations = tuple[Callable[[random.Random, str], str], ...]


def _mutated(chance: random.Random, seeds: tuple[str, ...], kinds: TextMutations, path: Path) -> list[str]:
    text, names = chance.choice(seeds), []
    for mutation in chance.choices(kinds, k=chance.choice((1, 1, 2, 3, 5))):
        text = mutation(chance, text)
        names.append(mutation.__name__)
    path.write_bytes(text.encode("utf-8", "surrogatepass" if chance.random() < 0.5 else "replace"))
    return names


def log(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    return folder / "job.log", _mutated(chance, LOGS, TEXT, folder / "job.log")


def ras_text(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    return folder / "ras.txt", _mutated(chance, RAS_TEXTS, TEXT, folder / "ras.txt")


def ras_json(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    return folder / "ras.json", _mutated(chance, RAS_JSON, JSON, folder / "ras.json")


def dumps(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    """Dumps of a real job, one of them spoiled."""
    seed = chance.choice(sorted(path for path in DUMPS.iterdir() if path.is_dir()))
    files = {path.name: path.read_bytes() for path in sorted(seed.iterdir())}
    name = chance.choice(list(files))
    names = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        if name.endswith(".json"):
            text = files[name].decode("utf-8", "surrogateescape")
            mutation = chance.choice(JSON)
            files[name] = mutation(chance, text).encode("utf-8", "surrogatepass")
        else:
            mutation = chance.choice(PICKLE)  # type: ignore[assignment]
            files[name] = mutation(chance, files[name])  # type: ignore[arg-type, assignment]
        names.append(mutation.__name__)
    for one, data in files.items():
        (folder / one).write_bytes(data)
    return folder, names


def clogs(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    """The clogs of a small job, one of them spoiled."""
    ranks, names = test_clog.job(3, steps=chance.choice((1, 3))), []
    for one in ranks:
        one.lines.append("split|parent=world|child=tp|ranks=0,1")
        one.call(test_clog.BARRIER, "", "G42|").goes_on(test_clog.BARRIER, "S", "G42|R1|")
        one.write(folder)
    path = folder / f"clog_{chance.randrange(len(ranks))}.log"
    names = _mutated(chance, (path.read_text(),), CLOG, path)
    return folder, names


def stacks(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    """What py-spy and faulthandler printed of the ranks of a job, one of them spoiled."""
    waits = test_stack_files.BACKWARD
    for rank in range(2):
        (folder / f"rank{rank}.txt").write_text(test_stack_files.text(70 + rank, waits, more=test_stack_files.PREFETCH))
    if chance.random() < 0.5:
        return folder, _mutated(chance, (test_stack_files.as_json(72, waits),), JSON, folder / "rank2.json")
    seeds = (test_stack_files.text(72, test_stack_files.QUEUE), test_stack_files.WAITS.format(prefix=""))
    return folder, _mutated(chance, seeds, TEXT, folder / "rank2.txt")


FAMILIES = {"stacks": stacks, "log": log, "ras-text": ras_text, "ras-json": ras_json, "dumps": dumps, "clogs": clogs}
