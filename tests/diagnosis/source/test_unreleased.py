"""A lock whose release an exception skips is found from the line that waits for it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.unreleased import unreleased_at
from distdoctor.recording.recording import SourceLine

SKIPPED = """\
    def fetch(path):
        lock = SoftLock(path)
        lock.acquire()
        if not path.exists():
            save(path)
        lock.release()
    """
FINALLY = """\
    def fetch(path):
        lock.acquire()
        try:
            save(path)
        finally:
            lock.release()
    """
AT_ONCE = """\
    def turn():
        lock.acquire()
        lock.release()
    """
ANOTHER = """\
    def fetch(path):
        mine.acquire()
        save(path)
        theirs.release()
    """


def test_the_release_that_an_exception_skips_is_shown() -> None:
    sites = [SourceLine("cache.py", 9, "acquire"), SourceLine("train.py", 3, "fetch")]
    found = unreleased_at({"train.py": dedent(SKIPPED)}, sites)

    assert found is not None
    assert (found.taken.line, found.released.line, found.text) == (3, 6, "lock.release()")


@pytest.mark.parametrize(("source", "line"), [(FINALLY, 2), (AT_ONCE, 2), (ANOTHER, 2), (SKIPPED, 5)])
def test_a_release_that_nothing_skips_is_none(source: str, line: int) -> None:
    assert unreleased_at({"train.py": dedent(source)}, [SourceLine("train.py", line, "fetch")]) is None
