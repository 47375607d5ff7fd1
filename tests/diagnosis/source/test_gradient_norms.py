"""Sums over ranks of what squared gradients add up to."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.gradient_norms import clips_by_summed_squares
from distdoctor.recording.source_line import SourceLine

HEAD = "def clip(params, limit, group):\n"
SCALES = "    for p in params:\n        p.grad.mul_(limit / total.sqrt())\n"


def found(*lines: str, scales: str = SCALES) -> bool:
    body = "".join(f"    {line}\n" for line in lines)
    text = HEAD + body + scales
    at = next(number for number, line in enumerate(text.splitlines(), 1) if "all_reduce" in line)
    return clips_by_summed_squares({"/job/clip.py": text}, SourceLine("/job/clip.py", at, "clip"))


@pytest.mark.parametrize(
    "lines",
    [
        ("total = sum(p.grad.norm() ** 2 for p in params)", "dist.all_reduce(total, group=group)"),
        ("grads = [p.grad for p in params]", "norms = torch._foreach_norm(grads)",
         "total = torch.stack(norms).pow(2).sum()", "dist.all_reduce(total)"),
        ("total = torch.zeros(())", "for p in params:", "    total += p.grad.square().sum()", "dist.all_reduce(total)"),
        ("total = torch.zeros(())", "for p in params:", "    total.add_(p.grad.pow(2).sum())", "dist.all_reduce(total)"),
        ("squares = []", "for g in (p.grad for p in params):", "    squares.append(g.square().sum())",
         "total = torch.stack(squares).sum()", "dist.all_reduce(total)"),
    ],
)  # fmt: skip
def test_squares_are_followed_into_the_sum(lines: tuple[str, ...]) -> None:
    assert found(*lines)


def test_what_is_summed_has_to_be_made_of_them_and_to_scale() -> None:
    total = "total = sum(p.grad.norm() ** 2 for p in params)"

    assert not found(total, "dist.all_reduce(loss)")
    assert not found(total, "dist.all_reduce(total)", scales="    return total\n")
    assert not found(total, "dist.all_reduce(total)", "total /= dist.get_world_size()")
