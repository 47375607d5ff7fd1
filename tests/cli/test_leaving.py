"""A launcher that has reported ends with the code of its report, whoever asks it to end meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import atexit, os, signal, sys, threading
sys.modules["torch"] = sys  # as where it is loaded
from distdoctor.cli.leaving import leave
atexit.register(print, "told of the end")
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
{before}
sys.stdout.write("written\\n")
leave(3)
"""
WAITED_FOR = 'threading.Thread(target=lambda: (threading.main_thread().join(), print("waited for"))).start()'


@pytest.mark.parametrize(("before", "last"), [("", "told of the end"), (WAITED_FOR, "waited for")])
def test_a_scheduler_that_asks_late_changes_no_exit_code_and_nothing_is_left_unsaid(before: str, last: str) -> None:
    words = LEAVES.format(before=before)
    if before:  # the interpreter's own end, in which a signal is one
        words = words.replace("atexit.register(os.kill, os.getpid(), signal.SIGTERM)", "")
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)

    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[0] == "written"
    assert last in done.stdout.splitlines()
