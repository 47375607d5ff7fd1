"""What can go wrong for the user: each error says what happened, with the values, and the way out."""

from __future__ import annotations

from typing import ClassVar


class DoctorError(Exception):
    """Base of every error that a user may meet; the command line prints it as two lines and exits with `exit_code`.

    `str(error)` is one sentence with the values; `way_out` is one sentence that says what to do instead.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, way_out: str) -> None:
        super().__init__(message)
        self.way_out = way_out
        self.add_note(way_out)  # tracebacks show it below the message


class WrongUse(DoctorError):
    """The command line, a setting or a plugin asks for something that does not exist or does not fit."""


class PluginTrouble(DoctorError):
    """A plugin offers something that contradicts its hook's contract or another plugin."""


class NothingToInspect(DoctorError):
    """There is no recording, job or dump where the user pointed."""

    exit_code = 4


class CouldNotLook(DoctorError):
    """There is something to look at, but it cannot be read: permissions, ptrace, a foreign format."""

    exit_code = 5


class UnreadableRecording(CouldNotLook):
    """One recording file is torn, truncated, foreign or from a newer distdoctor; the others can still be examined."""


class TornRecording(UnreadableRecording):
    """A recording file that distdoctor wrote, and of which a part is missing or was damaged afterwards."""
