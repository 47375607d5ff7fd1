"""Which source files are read beside a recording."""

from __future__ import annotations

from pathlib import Path

from distdoctor.recording.source_texts import MOST_OTHERS, read_sources
from distdoctor.recording.trace.layout import source_digest, source_text
from distdoctor.testing.rank_trace import TraceBuilder


def noted(*paths: Path) -> TraceBuilder:
    """A rank that noted these files as they are now."""
    log = TraceBuilder(0, world_size=1)
    for path in paths:
        log.text(source_text(str(path), source_digest(path.read_bytes())))
    return log


def test_what_was_only_imported_is_read_up_to_a_bound_and_what_is_mentioned_always(tmp_path: Path) -> None:
    files = [tmp_path / f"m{number}.py" for number in range(4)]
    for path in files:
        path.write_text("#" * (MOST_OTHERS // 2) + "\n")
    log = noted(*files).build()

    assert sorted(read_sources([str(files[3])], {0: log}).texts) == [str(files[n]) for n in (0, 1, 3)]


def test_an_imported_file_that_was_changed_is_left_out_without_a_word(tmp_path: Path) -> None:
    (path := tmp_path / "config.py").write_text("LIMIT = 1\n")
    log = noted(path).build()
    path.write_text("LIMIT = 2\n")

    assert (read_sources([], {0: log}).texts, read_sources([], {0: log}).changed) == ({}, ())
    assert "was changed after it was recorded" in read_sources([str(path)], {0: log}).changed[0]
