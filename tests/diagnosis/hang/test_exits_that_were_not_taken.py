"""A rank that ended with 0 has not gone through an exit with another code, whatever stands before the call that it missed."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing.script import Script

SOURCE = """
import sys
def main():
    for batch in loader:
        loss = step(batch)
        if not math.isfinite(loss):
            {exit}
        dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("exit", "named"), [("sys.exit(1)", False), ("sys.exit('bad loss')", False), ("sys.exit(0)", True)]
)
def test_an_exit_is_named_where_the_code_of_the_rank_agrees(exit: str, named: bool) -> None:
    script = Script(2).source("train.py", SOURCE.format(exit=exit))
    for _ in range(3):
        script.collective("all_reduce", [1], site="train.py:8 main").step()
    script.exits(0).collective("all_reduce", [1], only=1, site="train.py:8 main")

    (finding,) = examine(script.finished(), list(PLUGINS.checks.values())).findings
    assert (finding.code, finding.ranks) == ("DD109", (0,))
    assert ("isfinite" in finding.why) is named
