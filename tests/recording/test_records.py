"""What the probe writes is read by somebody, and what is read is written by the probe: nothing dead, nothing injected."""

from __future__ import annotations

import hashlib
import re
from enum import IntFlag
from pathlib import Path

import pytest

from distdoctor.recording.trace import events, layout

ROOT = Path(__file__).parents[2]
FLAGS = (layout.HolderFlag, layout.TensorFlag, layout.UpdateFlag, layout.DigestFlag, layout.CallFlag, layout.PassFlag)
# The last layout: whoever changes a record, a flag or a kind of event raises `layout.VERSION` and writes down both here.
VERSION, DIGEST = 4, "6640ac85ab7d61eb"


def source(*folders: str) -> str:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return "\n".join(path.read_text("utf-8") for path in files)


PROBE = source("distdoctor/probe")
READERS = source(
    "distdoctor/diagnosis", "distdoctor/report", "distdoctor/launch", "distdoctor/attach", "distdoctor/cli",
    "distdoctor/recording", "distdoctor/workloads", "plugins/distdoctor_checks",
)  # fmt: skip


def without_definitions(text: str) -> str:
    return text.replace((ROOT / "distdoctor/recording/trace/events.py").read_text("utf-8"), "")


@pytest.mark.parametrize("kind", list(events.KINDS.values()), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_is_written_by_the_probe_and_read_by_the_diagnosis(kind: type[events.TraceEvent]) -> None:
    name = kind.__name__

    assert re.search(rf"\b{name}\(", PROBE), f"no probe module notes {name}"
    assert re.search(rf"\b{name}\b", without_definitions(READERS)), f"nobody reads {name}"


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

    assert re.search(rf"\b{name}=|\"{name}\"|\b{name}: int = 0\b", PROBE), f"nobody writes {record}.{name}"
    assert re.search(rf"\"{name}\"|\.{name}\b", READERS), f"nobody reads {record}.{name}"


@pytest.mark.parametrize(
    ("flag", "name"),
    [(flag, one.name) for flag in FLAGS for one in flag],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_every_flag_is_set_by_the_probe_and_asked_for_by_somebody(flag: type[IntFlag], name: str) -> None:
    words = rf"\b{flag.__name__}\.{name}\b"

    assert re.search(words, PROBE), f"nobody sets {name}"
    assert re.search(words, READERS) or len(re.findall(words, PROBE)) > 1, f"nobody asks for {name}"


def digest_of_the_layout() -> str:
    """All that a reader has to know: records, flags, enumerations and kinds of events, in their order."""
    parts = [
        f"{record.name}{list(record.fields)}" for record in (layout.HEADER, layout.SECTION, *layout.RECORDS.values())
    ]
    parts += [
        str([(one.name, int(one)) for one in flag]) for flag in (*FLAGS, layout.Op, layout.ReduceOp, layout.Phase)
    ]
    parts += [f"{kind.number}{[(slot.field, slot.place) for slot in kind.slots]}" for kind in events.KINDS.values()]
    return hashlib.blake2b("".join([*parts, str(layout.DTYPES)]).encode(), digest_size=8).hexdigest()


def test_a_changed_layout_has_another_version() -> None:
    assert (layout.VERSION, digest_of_the_layout()) == (VERSION, DIGEST)


def test_an_event_comes_back_as_it_was_noted() -> None:
    texts = [""]

    def text_id(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    noted = events.Orphaned(("a", "b"), later=True, stale=1, own=2, count=3, nbytes=1 << 40)
    row = {"at_ns": 5, "site": 0, "seq": 7, **dict.fromkeys((*events.TEXTS, *events.NUMBERS), 0)}
    row |= events.encode(noted, text_id)

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
