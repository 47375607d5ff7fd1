"""`python -m distdoctor`, and the command `distdoctor`; Ctrl-C while its modules are imported ends it without a traceback."""

from __future__ import annotations

import signal

_handler = signal.getsignal(signal.SIGINT)
if _handler is signal.default_int_handler:  # not where a shell has it ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from distdoctor.cli.main import main  # noqa: E402

if _handler is signal.default_int_handler:
    signal.signal(signal.SIGINT, _handler)

if __name__ == "__main__":
    main()
