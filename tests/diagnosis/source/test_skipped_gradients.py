"""Which condition of a loop that reduces gradients by hand leaves some of them out, and whether it asks for their form alone."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.skipped_gradients import skip_of
from distdoctor.recording.recording import SourceLine


def skip(text: str) -> tuple[int, str] | None:
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "all_reduce(" in one)
    found = skip_of({"train.py": text}, SourceLine("train.py", line, "average"))
    return (found.site.line, found.form) if found is not None else None


LOOP = "def average(model):\n    for name, p in model.named_parameters():\n"
REDUCES = "dist.all_reduce(p.grad)\n"
LIST = "def average(model):\n    grads = {}\n    for grad in grads:\n        dist.all_reduce(grad)\n"
HANDED = "def average(grads):\n    dist.all_reduce(torch.cat(grads))\n\n\naverage({})\n"
APPENDS = "[]\n    for p in model.parameters():\n        if p.dtype == torch.float32:\n            grads.append(p.grad)"


def passing_over(condition: str) -> str:
    return LOOP + f"        if {condition}:\n            continue\n        {REDUCES}"


@pytest.mark.parametrize(
    ("text", "line", "form"),
    [
        (passing_over("p.grad is None or p.grad.is_sparse"), 3, "layout"),
        (LOOP + f"        if p.requires_grad and p.ndim > 1:\n            {REDUCES}", 3, "dimensions"),
        (LIST.format("[p.grad for p in model.parameters() if p.grad.layout == torch.strided]"), 2, "layout"),
        (LIST.format(APPENDS), 4, "dtype"),
        (HANDED.format("[p.grad for p in net.parameters() if p.numel() > 9]"), 5, "size"),
    ],
    ids=["passes over", "enters", "comprehension", "appends", "is handed"],
)
def test_a_condition_on_the_form_is_found(text: str, line: int, form: str) -> None:
    assert skip(text) == (line, form)


@pytest.mark.parametrize(
    "condition",
    [
        "p.grad is None",
        "'head' in name or p.ndim < 2",
        "is_expert(p) or p.grad.is_sparse",
        "p.is_local",
        "held + p.numel() > CAP",
        "rank == 0",
    ],
)
def test_a_condition_on_whose_it_is_or_on_nothing_of_the_parameter_is_none(condition: str) -> None:
    assert skip(passing_over(condition)) is None


def test_a_name_that_decides_as_well_leaves_the_question_open() -> None:
    text = passing_over("p.grad.is_sparse").replace(REDUCES, f"if 'head' not in name:\n            {REDUCES}")
    assert skip(text) is None


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("'expert' in name", ("expert",)),
        ("p.grad is None or 'expert' in name", ("expert",)),
        ("name.startswith('head.')", ("head.",)),
        ("any(k in name for k in ('expert', 'lora'))", ("expert", "lora")),
    ],
)
def test_a_condition_on_a_name_says_by_which_words(condition: str, words: tuple[str, ...]) -> None:
    found = skip_of({"train.py": passing_over(condition)}, SourceLine("train.py", 5, "average"))

    assert found is not None
    assert (found.site.line, found.form, found.words) == (3, "name", words)
