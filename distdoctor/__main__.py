"""`python -m distdoctor`, and the command `distdoctor`; Ctrl-C while its modules are imported ends it without a traceback."""

from __future__ import annotations

import signal
from typing import NoReturn

_handler = signal.getsignal(signal.SIGINT)
if _handler is signal.default_int_handler:  # not where a shell has it ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from distdoctor.cli import main as command_line  # noqa: E402
from distdoctor.cli.leaving import leave  # noqa: E402

if _handler is signal.default_int_handler:
    signal.signal(signal.SIGINT, _handler)


def main() -> NoReturn:
    """The command line, for a process of its own."""
    try:
        command_line.main()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
