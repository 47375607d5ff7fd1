"""What is said and done about findings while the job runs: as `--on-hang` and `--stop-on` ask for."""

from __future__ import annotations

import re
from collections.abc import Callable

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN, Finding, Stalls
from distdoctor.launch.job_state import JobState
from distdoctor.launch.run_options import RunOptions

_SECONDS = re.compile(r" for \d[\d.,]* s\b")


class LiveFindings:
    """Whom the watcher tells. `keep()` writes down what was seen, `abort()` begins to end the job."""

    def __init__(
        self, options: RunOptions, state: JobState, keep: Callable[[], object], abort: Callable[[], None]
    ) -> None:
        self._options, self._state, self._keep, self._abort = options, state, keep, abort

    def tell(self, finding: Finding, diagnosis: Diagnosis) -> None:
        if self._options.on_hang != "wait":
            self._options.tell(finding, diagnosis)
        self._keep()
        if finding.code in self._options.stop_on and finding.confidence == CERTAIN and not self._state.aborting:
            self._options.notice(f"{finding.code} is certain: ending the ranks (--stop-on)")
            self._abort()

    def still(self, finding: Finding, seconds: float) -> None:
        if self._options.on_hang != "wait" and not self._state.aborting:
            title = _SECONDS.sub("", finding.title, count=1)  # of the last look at the stacks, which is older
            self._options.notice(f"{_named(finding)}: still so after {seconds:.0f} s; {title}")

    def withdrawn(self, finding: Finding, seconds: float) -> None:
        self._keep()
        if self._options.on_hang != "wait" and not self._state.aborting:
            self._options.notice(f"{_named(finding)}: withdrawn, the job went on after {seconds:.0f} s")

    def hung(self, diagnosis: Diagnosis, proven: bool) -> None:
        """`proven`: its ranks wait for ever, whatever the code that says why; a likely reason is then enough for `--stop-on`."""
        self._keep()
        told = {one.code for one in diagnosis.findings if proven and one.stalls is Stalls.FOREVER}
        if self._options.on_hang == "abort" or told & self._options.stop_on:
            limit = "--on-hang abort" if proven else f"--hang-after {self._options.hang_after:g}"
            why = limit if self._options.on_hang == "abort" else f"--stop-on {min(told & self._options.stop_on)}"
            self._options.notice(f"the job hangs: ending its ranks ({why})")
            self._abort()
        elif self._options.on_hang == "report":
            self._options.notice("the job hangs; it is left alone (--on-hang report), Ctrl-C ends it and examines it")


def _named(finding: Finding) -> str:
    """`DD116 rank 1 train.py:57`, in one line of progress."""
    place = finding.place.short if finding.place else ""
    return " ".join(filter(None, (finding.code, finding.ranks_named if finding.ranks else "", place)))
