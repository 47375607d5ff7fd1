"""pdb stops at the line after the call that opened it, which is a loop's head where that call ends the loop."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.prompts import prompt_before
from distdoctor.recording.source_line import SourceLine

SOURCE = """\
def train():
    breakpoint()
    step = 0
    while step < 9:
        step += 1
    for batch in loader:
        step += 1
        if step == 4:
            pdb.set_trace()
    return step
"""


@pytest.mark.parametrize(("line", "opened"), [(3, 2), (4, 2), (5, 2), (6, 9), (10, 9), (1, None)])
def test_the_call_that_opened_a_prompt_is_found(line: int, opened: int | None) -> None:
    found = prompt_before({"train.py": SOURCE}, SourceLine("train.py", line, "train"))

    assert (found.line if found is not None else None) == opened
