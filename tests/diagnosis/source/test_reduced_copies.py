"""A gradient that is reduced in a copy, as the source shows it."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.reduced_copies import reduced_copy
from distdoctor.recording.recording import SourceLine

AVERAGE = """\
def average(params, world):
    for p in params:
        buffer = {copy}
        dist.all_reduce(buffer)
        buffer.div_(world)
        {then}
"""


def seen(copy: str, then: str) -> bool | None:
    found = reduced_copy({"/job/t.py": AVERAGE.format(copy=copy, then=then)}, SourceLine("/job/t.py", 4, "average"))
    assert found is None or (found.taken.line, found.text) == (3, copy)
    return found.always if found is not None else None


@pytest.mark.parametrize(
    ("copy", "always"),
    [
        ("p.grad.contiguous()", False),
        ("p.grad.data.to(torch.float32)", False),
        ("p.grad.clone()", True),
        ("torch.cat([q.grad.view(-1) for q in params])", True),
        ("p.grad", None),
        ("p.grad.detach()", None),  # shares its memory
        ("p.weight.clone()", None),
    ],
)
def test_a_copy_that_stays_in_the_function_is_seen(copy: str, always: bool | None) -> None:
    assert seen(copy, "pass") is always


@pytest.mark.parametrize(
    "then",
    [
        "p.grad = buffer",
        "p.grad.data = buffer.view_as(p)",
        "p.grad.copy_(buffer)",
        "put_back(p, buffer)",
        "kept.append(buffer)",
        "return buffer",
    ],
)
def test_what_is_written_back_or_handed_on_is_no_lost_copy(then: str) -> None:
    assert seen("p.grad.clone()", then) is None
