"""Errors that a rank holds back: a collective is issued while an exception is being handled, in a `finally`, an `except` or the
exit of a context. Its traceback is shown only once that collective has come back.

Asked once per collective, which costs 40 ns; what is noted is bounded, and no exception is kept.
"""

from __future__ import annotations

from distdoctor.probe import sites
from distdoctor.probe.context import Rank
from distdoctor.probe.error_words import in_plain_words
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import ErrorHeldBack

MOST_LINES = 32


class HeldErrors:
    """By the line that issues collectives in spite of an error: one event, which names the newest of them."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._lines: dict[int, int] = {}  # the number of its event
        self._error = self._calls = 0  # id of the newest one, and the calls in spite of it

    def note(self, error: BaseException, site: int, call: int) -> None:
        """The user's line `site` has just issued this call while that exception is being handled."""
        try:
            self._note(error, site, call)
        except Exception as trouble:
            hand_on(trouble)
            self.trace.note_trouble(
                f"collectives: what is handled there was left out: {type(trouble).__name__}: {trouble}"
            )

    def _note(self, error: BaseException, site: int, call: int) -> None:
        if id(error) != self._error:
            self._error, self._calls = id(error), 0
        self._calls += 1
        if site not in self._lines and len(self._lines) >= MOST_LINES:
            return
        texts = self.trace.texts
        event = ErrorHeldBack(in_plain_words(error), call, self._calls)
        raised = texts.id(sites.raised_at(error))
        if site in self._lines:
            self.trace.note_again(self._lines[site], event, site=raised)
        else:
            self._lines[site] = self.trace.note(event, site=raised)
