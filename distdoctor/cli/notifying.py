"""`--notify`: who is told of a diagnosis, while the job runs and when it is over; never a reason for another exit code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.cli.deliver import notice, remark

if TYPE_CHECKING:
    from distdoctor.cli.settings import Settings
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.diagnosis.finding import Finding
    from distdoctor.notify.ways import Target

Tell = Callable[["Finding", "Diagnosis"], None]


SOON_OVER = 15.0  # seconds that a job may take to end after an error, before its end is not waited for


class Notifier:
    """Tells the targets of `--notify` when the job is over; and at its first error, where the job does not end of it."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._live: threading.Timer | None = None

    @classmethod
    def of(cls, settings: Settings) -> Notifier:
        """WrongUse: there is no such way."""
        if not settings.notify:
            return cls([])
        from distdoctor.notify.ways import targets_of

        return cls(targets_of(settings.notify))

    def say_what_is_missing(self) -> None:
        """One line now, rather than after hours of training; the job is started all the same."""
        for target in self._targets:
            if target.missing:
                notice(f"--notify {target.way.name} will notify nobody: {target.missing}")

    def beside(self, tell: Tell, folder: Path) -> Tell:
        """`tell`, and a little later the targets: a job that hangs may never be over. The watch goes on meanwhile."""

        def told(finding: Finding, diagnosis: Diagnosis) -> None:
            from distdoctor.diagnosis.finding import ERROR

            tell(finding, diagnosis)
            if self._targets and self._live is None and (finding.severity or 0) >= ERROR:
                self._live = threading.Timer(SOON_OVER, self.send, (diagnosis, f"{folder.name} (while it runs)"))
                self._live.daemon = True
                self._live.start()

        return told

    def at_the_end(self, diagnosis: Diagnosis, name: str, *, interrupted: bool) -> None:
        """Where there is something to act on. Who interrupted the job knows that it is over."""
        from distdoctor.diagnosis.finding import WARNING
        from distdoctor.notify.alert import is_worth_an_alert

        if self._live is not None:
            self._live.cancel()
            self._live.join()
        if diagnosis.at_least(WARNING) if interrupted else is_worth_an_alert(diagnosis):
            self.send(diagnosis, name)

    def send(self, diagnosis: Diagnosis, name: str) -> None:
        """One line on stderr for each target. Never raises."""
        if self._targets:
            from distdoctor.notify.send import send

            send(diagnosis, name, self._targets, remark, notice)
