"""What the probe writes is read by somebody, and what is read is written by the probe: nothing dead, nothing injected."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from enum import IntFlag
from pathlib import Path

import pytest

from distdoctor.recording.trace import events, layout

ROOT = Path(__file__).parents[2]
FLAGS = (layout.HolderFlag, layout.TensorFlag, layout.UpdateFlag, layout.DigestFlag, layout.CallFlag, layout.PassFlag)
# The last layout: whoever changes a record, a flag or a kind of event raises `layout.VERSION` and writes down both here. A field
# that is appended to an event, or a flag to its kind, changes the digest alone: older recordings have its default there (a flag
# is not set), older readers pass over it. So does a field that is added to a record and named in `layout._ADDED`.
VERSION, DIGEST = 4, "32fd92d6114e4f54"


def source(*folders: str) -> str:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return "\n".join(path.read_text("utf-8") for path in files)


PROBE = source("distdoctor/probe")
READERS = source(
    "distdoctor/diagnosis", "distdoctor/report", "distdoctor/launch", "distdoctor/attach", "distdoctor/cli",
    "distdoctor/recording", "distdoctor/workloads", "plugins/distdoctor_checks",
)  # fmt: skip


# Every word by the way in which it stands there, found once for all tests.
CALLED_BY_PROBE = set(re.findall(r"\b(\w+)\(", PROBE))
WRITTEN_BY_PROBE = set(re.findall(r"\b(\w+)(?==|: int = 0\b)", PROBE)) | set(re.findall(r"\"(\w+)\"", PROBE))
# By position, where a record is put together of parts: see `layout.CALL_PARTS`.
PACKED = re.findall(r"(?:_write|_PLACE\.pack|_SIZE\.pack)\(([^()]*)\)", PROBE)
PACKED_BY_PROBE = {word for packed in PACKED for word in re.findall(r"\w+", packed)}
MEMBERS_IN_PROBE = Counter(re.findall(r"\b(?=(\w+\.\w+)\b)", PROBE))
READ = set(re.findall(r"\"(\w+)\"", READERS)) | set(re.findall(r"\.(\w+)\b", READERS))
MEMBERS_READ = set(re.findall(r"\b(?=(\w+\.\w+)\b)", READERS))
NAMED = set(re.findall(r"\w+", READERS.replace((ROOT / "distdoctor/recording/trace/events.py").read_text("utf-8"), "")))


@pytest.mark.parametrize("kind", list(events.KINDS.values()), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_is_written_by_the_probe_and_read_by_the_diagnosis(kind: type[events.TraceEvent]) -> None:
    name = kind.__name__

    assert name in CALLED_BY_PROBE, f"no probe module notes {name}"
    assert name in NAMED, f"nobody reads {name}"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (record.name, name)
        for record in layout.RECORDS.values()
        for name in record.offsets
        if not name.startswith("spare")
    ],
)
def test_every_field_of_a_record_is_written_by_the_probe_and_read_by_somebody(record: str, name: str) -> None:
    if name in ("seq", "end", *events.TEXTS, *events.NUMBERS, *layout.RNG_SOURCES) or record == "spots":
        return  # stamped by every ring, or written and read through `events`, `RNG_SOURCES` and numbered names
    if (record, name) in (("groups", "count"), ("groups", "last_ns"), ("blocks", "count")):
        return  # brought up to date in place, among the fields beside them

    if (record, name) == ("calls", "entered_ns"):
        assert {"now", "returned"} <= PACKED_BY_PROBE
        return
    assert name in WRITTEN_BY_PROBE | PACKED_BY_PROBE, f"nobody writes {record}.{name}"
    assert name in READ, f"nobody reads {record}.{name}"


@pytest.mark.parametrize(
    ("flag", "name"),
    [(flag, one.name) for flag in FLAGS for one in flag],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_every_flag_is_set_by_the_probe_and_asked_for_by_somebody(flag: type[IntFlag], name: str) -> None:
    word = f"{flag.__name__}.{name}"

    assert word in MEMBERS_IN_PROBE, f"nobody sets {name}"
    assert word in MEMBERS_READ or MEMBERS_IN_PROBE[word] > 1, f"nobody asks for {name}"


def digest_of_the_layout() -> str:
    """All that a reader has to know: records, flags, enumerations and kinds of events, in their order."""
    parts = [
        f"{record.name}{list(record.fields)}" for record in (layout.HEADER, layout.SECTION, *layout.RECORDS.values())
    ]
    parts += [
        str([(one.name, int(one)) for one in flag]) for flag in (*FLAGS, layout.Op, layout.ReduceOp, layout.Phase)
    ]
    parts += [
        f"{kind.number}{[(slot.field, slot.place) for slot in events.slots_of(kind)]}" for kind in events.KINDS.values()
    ]
    return hashlib.blake2b("".join([*parts, str(layout.DTYPES)]).encode(), digest_size=8).hexdigest()


def test_a_changed_layout_has_another_version() -> None:
    assert (layout.VERSION, digest_of_the_layout()) == (VERSION, DIGEST)


def test_an_event_comes_back_as_it_was_noted() -> None:
    texts = [""]

    def text_id(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    noted = events.Orphaned(("a", "b"), later=True, stale=1, own=2, count=3, nbytes=1 << 40)
    fields = {"at_ns": 5, "seq": 7, **events.encode(noted, text_id)}
    row = [fields.get(name, 0) for name, _ in layout.EVENT.fields]

    back = events.decode(events.Orphaned, row, texts)

    assert (back.names, back.later, back.stale, back.own, back.count, back.nbytes) == (
        ("a", "b"),
        True,
        1,
        2,
        3,
        1 << 40,
    )
    assert (back.at_ns, back.seq) == (5, 7)
