"""What NCCL's RAS says about a job (`ncclras`, NCCL 2.24+; its JSON, 2.28.7+; RCCL's `rcclras`): who has launched how many calls
in each communicator, and which processes do not answer.

RAS counts what the hosts have launched, per kind of call; what the devices have completed it does not know. Ranks are those of
the communicator; those of the largest one, which spans the job, are taken for the job's.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from distdoctor.errors import UnreadableRecording, WrongUse
from distdoctor.recording.files import head_of, read_bytes
from distdoctor.recording.flight.entries import text, whole
from distdoctor.recording.foreign_values import require_few, values_in_json
from distdoctor.recording.ras_report import Absent, Communicator, RasReport
from distdoctor.recording.recording import Job, Recording

LAUNCHER = "NCCL RAS"  # what a recording made of it says about who started the job
LARGEST_BYTES = 64 << 20
MOST_LINES = 1 << 20
MOST_RANKS = 1 << 20
_LONGEST_LINE = 4000
_ALL = "collective"  # NCCL 2.24 and 2.25 do not count by kind

_LONGEST_DATE = 60
_MOST_ANSWERS = 256  # of one file, the newest
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20}", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,18}")
_COMMUNICATOR = re.compile(r"^#(\d{1,9})-(\d{1,9}) \(([0-9a-fA-F]{1,40})\) (\w{1,20})")
_DIFFERENT = re.compile(r"Communicator ranks have different (\w{0,30}) ?(?:collective )?operation counts")
_MANY = re.compile(r"^\s{0,20}(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^\s{0,20}Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations)")
_RANK = re.compile(r"^\s{0,20}Rank (\d{1,9}) --")
_PROCESS = re.compile(r"managed by process (\d{1,9}) on node (\S{1,200})")
_LONE_PROCESS = re.compile(r"^\s{0,20}Process (\d{1,9}) on node (\S{1,200}) managing GPU")
_MISSING = re.compile(r"The missing ranks?: ([\d, ]{1,4000})")
_TABLE = re.compile(
    r"^\s{0,20}\d{1,9}\s{1,20}(\d{1,9})\s{1,20}[\d-]{1,20}\s{1,20}[\d-]{1,20}\s{1,20}([\d-]{1,20})\s{1,20}\d{1,9}\s{1,20}\w"
)


def looks_like_ras(path: Path) -> bool:
    """Whether the first bytes are those of RAS, as text or JSON."""
    return begins_like_ras(head_of(path, 65536))


def begins_like_ras(begin: bytes) -> bool:
    """Whether these are the first bytes of RAS, as text or JSON."""
    return _is_ras(begin.decode("utf-8", "replace"))


def _is_ras(head: str) -> bool:
    if head.lstrip()[:1] == "{":
        return '"nccl_version"' in head and '"communicators"' in head and '"entries"' not in head
    return "Communicators..." in head and ("Ranks" in head or "Job summary" in head)


def read_ras(*paths: Path) -> Recording:
    """The recording in files of RAS: answers about one job, in the order of their times, else of their names.

    UnreadableRecording: torn, or something else. WrongUse: they are of different jobs.
    """
    found: list[RasReport] = []
    for path in in_order(paths):
        try:
            if path.stat().st_size > LARGEST_BYTES:
                raise ValueError("it is larger than anything RAS writes")
            answers = answers_in(read_bytes(path, LARGEST_BYTES).decode("utf-8", "replace"))
        except (OSError, ValueError, RecursionError) as trouble:
            raise _torn(str(path), trouble) from None
        found += [replace(one, name=one.name or _called(path, number)) for number, one in enumerate(answers, start=1)]
    return _recording(_one_job(found))


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Files of RAS as they were written, each once: by the numbers in their names; without any, by their own times."""
    unique = list({path.resolve(): path for path in paths}.values())
    if any(not _DIGITS.search(path.name) for path in unique):
        return sorted(unique, key=lambda path: (_written(path), path.name))
    return sorted(unique, key=lambda path: ([int(number) for number in _DIGITS.findall(path.name)], path.name))


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _called(path: Path, number: int) -> str:
    return path.name if number == 1 else f"{path.name} (answer {number})"


def read_ras_stream(stream: BinaryIO) -> Recording:
    """The recording in the output of RAS that comes by a stream.

    UnreadableRecording: torn, or something else.
    """
    try:
        answer = stream.read(LARGEST_BYTES + 1)
        if len(answer) > LARGEST_BYTES:
            raise ValueError("it is larger than anything RAS writes")
        return recording_of(answer.decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError) as trouble:
        raise _torn("the text on standard input", trouble) from None


def _torn(name: str, trouble: Exception) -> UnreadableRecording:
    return UnreadableRecording(
        f"{name} is no output of NCCL RAS, or a torn one: {str(trouble)[:200]}",
        way_out="Run ncclras -f json -v again.",
    )


def recording_of(words: str) -> Recording:
    """The recording that answers of RAS make.

    ValueError: it is none. WrongUse: they are of different jobs.
    """
    return _recording(_one_job(answers_in(words)))


def _recording(report: RasReport) -> Recording:
    job = Job(world_size=report.size, launcher=LAUNCHER)
    return Recording(job=job, ranks={}, streams=frozenset(), ras=report)


def _one_job(answers: Sequence[RasReport]) -> RasReport:
    """The newest of several answers, which has the others before it.

    WrongUse: they are of different jobs.
    """
    if all(one.asked_at for one in answers):
        answers = sorted(answers, key=lambda one: one.asked_at)
    # A copy of a file is no second answer.
    answers = [
        one for number, one in enumerate(answers) if not (number and one.asked_at and _same(one, answers[number - 1]))
    ]
    *earlier, newest = answers
    for one in earlier:
        told = one.version and newest.version  # of the text form, which names few, the sizes alone can be compared
        if (told and not one.by_key.keys() & newest.by_key.keys()) or (
            one.size and newest.size and one.size != newest.size
        ):
            raise WrongUse(
                f"these are answers of NCCL's RAS about different jobs, or different starts of one: {one.name or 'one'} and "
                f"{newest.name or 'another'} have no communicator in common"
                if told
                else f"these are answers of NCCL's RAS about different jobs: of {one.size} ranks and of {newest.size}",
                way_out="Examine those of each job by themselves.",
            )
    return replace(newest, earlier=tuple(earlier))


def _same(one: RasReport, other: RasReport) -> bool:
    return replace(one, name="") == replace(other, name="")


def report_of(words: str) -> RasReport:
    """What RAS answered, in either form; of several answers the last.

    ValueError: it is neither.
    """
    return answers_in(words)[-1]


def answers_in(words: str) -> list[RasReport]:
    """What RAS answered, in either form: one answer, or those that somebody appended to one file.

    ValueError: it is neither.
    """
    if not _is_ras(words[:65536]):
        raise ValueError("it has no communicators")
    if words.lstrip()[:1] == "{":
        require_few(values_in_json(words))
        return [_of_document(content) for content in _documents(words)]
    if words.count("\n") > MOST_LINES:
        raise ValueError(f"it has more than {MOST_LINES:,} lines")
    lines = words.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("Job summary")][-_MOST_ANSWERS:]
    if len(begins) < 2:
        return [_of_text(words)]
    ends = [*(_beginning(lines, number) for number in begins[1:]), len(lines)]
    starts = [0, *ends]
    return [
        replace(_of_text("\n".join(lines[start:end])), name=_moment(lines[max(0, start - 3) : begin]))
        for start, begin, end in zip(starts, begins, ends, strict=False)
    ]


def _beginning(lines: Sequence[str], summary: int) -> int:
    """The line with which an answer begins: NCCL's version, above its summary."""
    for number in range(summary, max(0, summary - 6), -1):
        if lines[number].startswith("NCCL version"):
            return number
    return summary


def _moment(lines: Iterable[str]) -> str:
    """The time that somebody had printed above an answer (`date`), "" where nobody did."""
    return next((line.strip() for line in lines if len(line) < _LONGEST_DATE and _CLOCK.search(line)), "")


def _documents(words: str) -> list[dict[str, Any]]:
    """The JSON documents of a text, one behind the other; a torn one behind whole ones is left out."""
    decoder, at = json.JSONDecoder(), 0
    found: deque[dict[str, Any]] = deque(maxlen=_MOST_ANSWERS)
    while (begin := words.find("{", at)) >= 0:
        try:
            content, at = decoder.raw_decode(words, begin)
        except ValueError:
            if not found:
                raise
            break
        found.append(content)
    return list(found)


def _of_document(content: Mapping[str, Any]) -> RasReport:
    found = [_of_json(one) for one in _objects(content, "communicators")]
    dead = {absent.process for one in found for absent in one.absent if absent.is_dead and absent.process}
    moment = text(content.get("timestamp"))
    moment = moment if _ISO.fullmatch(moment) else ""
    return RasReport(tuple(found), tuple(sorted(dead)), text(content.get("nccl_version")), moment, moment)


def _of_json(one: Mapping[str, Any]) -> Communicator:
    ranks = _objects(one, "ranks")
    status = {whole(rank.get("rank")): rank.get("status") or {} for rank in ranks}
    states = {
        rank: (whole(s.get("init_state")), whole(s.get("async_error")))
        for rank, s in status.items()
        if isinstance(s, dict)
    }
    missing = _objects(one, "missing_ranks")
    return Communicator(
        name=text(one.get("hash")),
        size=min(whole(one.get("size")), MOST_RANKS),
        counts={whole(rank.get("rank")): _counts(rank.get("collective_counts")) for rank in ranks},
        absent=tuple(_absent(rank) for rank in missing),
        starting=tuple(sorted(rank for rank, (init, _) in states.items() if init == _IN_PROGRESS)),
        failed={
            r: init or error
            for r, (init, error) in states.items()
            if init not in (0, _IN_PROGRESS) or error not in (0, _IN_PROGRESS)
        },
        processes={whole(rank.get("rank")): _process(rank) for rank in (*ranks, *missing)},
    )


_IN_PROGRESS = 7  # ncclInProgress


def _objects(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """What is an object in the list of this name; nothing where it is no list."""
    found = content.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _counts(value: Any) -> dict[str, int]:
    return {text(name): whole(count) for name, count in value.items()} if isinstance(value, dict) else {}


def _absent(rank: Mapping[str, Any]) -> Absent:
    status = rank.get("status")
    dead = bool(status.get("considered_dead")) if isinstance(status, dict) else False
    return Absent(whole(rank.get("rank")), _process(rank), dead)


def _process(rank: Mapping[str, Any]) -> str:
    return f"process {whole(rank.get('pid'))} on node {text(rank.get('host'))}" if rank.get("pid") else ""


def _of_text(words: str) -> RasReport:
    """The text form names outliers only: whoever it does not name is with the majority."""
    blocks: list[tuple[re.Match[str], list[str]]] = []
    dead: list[str] = []
    size, in_dead = 0, False
    for line in (one[:_LONGEST_LINE] for one in words.splitlines()):
        if match := _COMMUNICATOR.match(line):
            blocks.append((match, []))
            in_dead = False
        elif line[:1] not in (" ", "", "="):
            in_dead = line.startswith("DEAD")
        elif blocks and line.strip():
            blocks[-1][1].append(line)
        if in_dead and (process := _LONE_PROCESS.match(line)):
            dead.append(f"process {process[1]} on node {process[2]}")
        if row := _TABLE.match(line):
            size = min(max(size, *(whole(word) for word in row[2].split("-"))), MOST_RANKS)
    named: dict[str, list[tuple[re.Match[str], list[str]]]] = {}
    for match, lines in blocks:
        named.setdefault(f"#{match[1]}-{match[2]} ({match[3]})", []).append((match, lines))
    communicators = tuple(_of_blocks(name, found, dead, size) for name, found in named.items())
    whole_job = Communicator("the largest communicator", size, {}) if size else None
    if whole_job is not None and not any(one.size >= size for one in communicators):
        communicators = (*communicators, whole_job)
    return RasReport(communicators, tuple(dead))


def _of_blocks(
    name: str, blocks: Iterable[tuple[re.Match[str], list[str]]], dead: list[str], size: int
) -> Communicator:
    counts: dict[int, dict[str, int]] = {}
    absent: dict[int, Absent] = {}
    sizes = [0]
    for match, lines in blocks:
        if match[4] == "INCOMPLETE":
            absent |= {one.rank: one for one in _missing(lines, dead)}
        for operation, part in _by_operation(lines):
            total = _launched(operation, part, counts)
            sizes.append(total)
    known = min(max(sizes), MOST_RANKS) or size
    for operation in {name for found in counts.values() for name in found}:
        usual = counts.get(-1, {}).get(operation, 0)
        for rank in range(known):
            counts.setdefault(rank, {}).setdefault(operation, usual)
    counts.pop(-1, None)
    answered = {rank: found for rank, found in counts.items() if rank not in absent}
    return Communicator(name, known, answered, tuple(absent.values()))


def _by_operation(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _DIFFERENT.search(line):
            found.append((match[1] if match[1] not in ("", "collective") else _ALL, []))
        elif found:
            found[-1][1].append(line)
    yield from found


def _launched(operation: str, lines: Iterable[str], counts: dict[int, dict[str, int]]) -> int:
    """How many ranks there are; fills in what they have launched. The largest part, whose ranks are not listed, goes by -1."""
    parts: list[tuple[int, int]] = []  # how many ranks, up to which number
    here = 0
    for line in lines:
        if many := _MANY.match(line):
            here = int(many[2] or 0)
            parts.append((int(many[1]), here))
        elif one := _ONE.match(line):
            parts.append((1, int(one[2] or 0)))
            counts.setdefault(int(one[1]), {})[operation] = int(one[2] or 0)
        elif listed := _RANK.match(line):
            counts.setdefault(int(listed[1]), {})[operation] = here
    if parts:
        counts.setdefault(-1, {})[operation] = max(parts)[1]
    return sum(count for count, _ in parts)


def _missing(lines: Iterable[str], dead: list[str]) -> Iterator[Absent]:
    for line in lines:
        if match := _MISSING.search(line):
            yield from (Absent(int(rank), "", bool(dead)) for rank in re.findall(r"\b[0-9]{1,9}\b", match[1]))
        elif listed := _RANK.match(line):
            process = _PROCESS.search(line)
            words = f"process {process[1]} on node {process[2]}" if process else ""
            yield Absent(int(listed[1]), words, words in dead)
