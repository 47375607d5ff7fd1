"""What somebody else wrote is taken apart only where it fits into memory, and a stream without an end is left."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from distdoctor.recording.checkpoint.inert_pickle import key_text, read_inert
from distdoctor.recording.foreign_values import MOST_VALUES, parse_json, require_few_values, values_in_json
from distdoctor.recording.job_log import FIRST_LINES, LAST_LINES, parse_log

MOST_MIB = 512
PICKLES = {
    "lists": b"\x80\x02](" + b"]" * 5_000_000 + b"e.",
    "objects": b"\x80\x02](" + b"cx\ny\n" * 2_000_000 + b"e.",
    "calls": b"\x80\x02cx\ny\nq\x00](" + b"h\x00)R" * 1_700_000 + b"e.",
    "numbered": b"\x80\x02]" + b"".join(b"r" + n.to_bytes(4, "little") for n in range(3_700_000)) + b".",
    "names": b"\x80\x02}X\x00\x00\x10\x00"
    + b"a" * (1 << 20)
    + b"}("
    + b"".join(b"M%sN" % n.to_bytes(2, "little") for n in range(20_000))
    + b"us.",
    "rows of rows": b"\x80\x02](}]" + b"".join(b"q%c](}" % n + b"h%c" % n * 100_000 + b"e" for n in range(100)) + b"e.",
    "in itself": b"\x80\x02ca\n_rebuild_b\nq\x00h\x00\x85b.",
    "nested": b"\x80\x02](" + b"(" * 30_000_000 + b"e.",
}


def examined(path: str, given: int | None = None) -> tuple[subprocess.CompletedProcess[str], int]:
    """What `examine` says, and the MiB that it held at most."""
    watched = (
        "import sys; from distdoctor.cli.main import main\n"
        "try: main(['examine', sys.argv[1]])\n"
        "finally: print(*[l for l in open('/proc/self/status') if l.startswith('VmHWM')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched, path], stdin=given, capture_output=True, text=True, timeout=250, check=False
    )
    words, _, peak = done.stderr.rpartition("VmHWM:")
    done.stderr = words
    return done, int(peak.split()[0]) >> 10


@pytest.mark.job
@pytest.mark.parametrize("endless", [["yes"], ["cat", "/dev/zero"]])
def test_a_stream_without_an_end_is_left_in_one_sentence(endless: list[str]) -> None:
    with subprocess.Popen(endless, stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        done, peak = examined("-", source.stdout.fileno())
        source.kill()

    assert done.returncode == 5
    assert done.stderr.splitlines()[0] == "distdoctor: the standard input has sent 4 GiB and has not ended"
    assert peak < MOST_MIB


@pytest.mark.job
@pytest.mark.parametrize("kind", PICKLES)
def test_a_small_pickle_does_not_fill_the_memory(kind: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "last.pt", "w") as archive:
        archive.writestr("last/data.pkl", PICKLES[kind])
        archive.writestr("last/version", "3")

    done, peak = examined(str(tmp_path / "last.pt"))

    assert done.returncode in (0, 5), done.stderr
    assert "Traceback" not in done.stderr
    assert peak < MOST_MIB


def test_a_key_that_would_be_hashed_for_years_is_refused() -> None:
    doubled = b")" + b"2\x86" * 60  # each tuple holds the one before twice
    for use in (b"}%bK\x01s.", b"}(%bK\x01u.", b"(%b\x91.", b"\x8f(%b\x90."):
        with pytest.raises(ValueError, match="a key in its pickle is a tuple of tuples"):
            read_inert(b"\x80\x04" + use % doubled)


def test_a_value_of_many_tuples_has_no_endless_text() -> None:
    assert key_text((1, "a")) == "(1, 'a')"
    assert key_text(((1,), (1,))) == "tuple"


def test_a_document_with_too_many_values_is_refused_before_it_is_taken_apart() -> None:
    for refused, text in (
        (parse_json, b"[" + b"[]," * (MOST_VALUES // 2) + b"[]]"),
        (require_few_values, b"\x90" * (MOST_VALUES + 1)),
    ):
        with pytest.raises(ValueError, match="it holds more than 4,194,304 values, the most that are read"):
            refused(text)


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_json(b"[" * 100_000)


@pytest.mark.parametrize("value", [1, [], {}, [1, [2, {"a": [3, 4]}], {}], {"a": {"b": "c,d:[{"}, "e": [None, True]}])
def test_no_value_of_a_document_is_left_uncounted(value: object) -> None:
    def values(inner: object) -> int:
        if isinstance(inner, dict):
            return 1 + sum(1 + values(one) for one in inner.values())
        return 1 + sum(map(values, inner)) if isinstance(inner, list) else 1

    assert values_in_json(msgspec.json.encode(value)) >= values(value)
    assert values_in_json(msgspec.json.encode(value).decode()) == values_in_json(msgspec.json.encode(value))


def test_packed_values_of_all_kinds_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        0,
        -1,
        200,
        -200,
        1 << 12,
        1 << 20,
        1 << 40,
        -(1 << 40),
        1.5,
        None,
        True,
        "a",
        "b" * 40,
        "c" * 300,
        "d" * 70_000,
    ]
    kinds += [b"e", b"f" * 300, b"g" * 70_000, [0] * 20, [0] * 70_000, {str(n): n for n in range(20)}]
    kinds += [msgspec.msgpack.Ext(7, b"x" * size) for size in (1, 2, 4, 8, 16, 3, 300, 70_000)]
    count = 1 + len(kinds) + 20 + 70_000 + 40
    raw = msgspec.msgpack.encode(kinds)

    monkeypatch.setattr("distdoctor.recording.foreign_values.MOST_VALUES", count)
    require_few_values(raw)
    monkeypatch.setattr("distdoctor.recording.foreign_values.MOST_VALUES", count - 1)
    with pytest.raises(ValueError, match="it holds more than"):
        require_few_values(raw)


def test_of_a_log_full_of_errors_both_ends_are_read_and_the_rest_is_told() -> None:
    lines = [
        "[rank1]: ValueError: the first",
        *["Connection closed by peer"] * (FIRST_LINES + LAST_LINES),
        "[rank0]: TypeError: x",
    ]

    recording = parse_log("\n".join(lines))

    assert recording.clues[0].words == "ValueError: the first"
    assert recording.clues[-1].line_number == len(lines)
    assert [one.what for one in recording.troubles] == [
        f"2 lines of the log between lines {FIRST_LINES} and {FIRST_LINES + 3} speak of errors too, and were not read"
    ]
