"""The handbook is there whatever the interpreter drops."""

from __future__ import annotations

import os
import subprocess
import sys

from distdoctor.diagnosis import handbook, not_examined

ASK = "from distdoctor.diagnosis import handbook, not_examined; print(handbook.page_of(not_examined.__name__))"


def test_a_page_is_the_docstring_of_its_file_also_where_docstrings_are_dropped() -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    done = subprocess.run(
        [sys.executable, "-OO", "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.rstrip("\n") == handbook.page_of(not_examined.__name__)
    assert "What it means" in done.stdout
