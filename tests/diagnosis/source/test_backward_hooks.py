"""Which functions are hooks of the backward pass, by what their file says."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.backward_hooks import hooked_at
from distdoctor.recording.recording import SourceLine

STEPS = """\
def fuse(params, table):
    def update(p):
        table[p].step()

    for p in params:
        p.{register}
{more}
"""


@pytest.mark.parametrize(
    ("register", "more", "line"),
    [
        ("register_post_accumulate_grad_hook(update)", "", 6),
        ("register_hook(partial(update))", "", 6),
        ("register_post_accumulate_grad_hook(update)", "    update(params[0])", 0),  # called after backward, too
        ("register_state_dict_pre_hook(update)", "", 0),
        ("data.add_(update)", "", 0),
    ],
)
def test_a_function_that_is_given_to_autograd_and_called_nowhere_else_is_a_hook(
    register: str, more: str, line: int
) -> None:
    sources = {"/job/t.py": STEPS.format(register=register, more=more)}

    assert hooked_at(sources, SourceLine("/job/t.py", 3, "update")).line == line
    assert hooked_at(sources, SourceLine("/job/t.py", 5, "fuse")).line == 0


def test_a_lambda_is_one_as_well() -> None:
    text = "for p in params:\n    p.register_post_accumulate_grad_hook(\n        lambda p: table[p].step()\n    )\n"

    assert hooked_at({"/job/t.py": text}, SourceLine("/job/t.py", 3, "<lambda>")) == SourceLine(
        "/job/t.py", 2, "<module>"
    )
