"""Gathers of rows of other numbers: what fills them up stays in, or is cut off, or can be told from a result."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.uncut_gather import uncut_gathers

SOURCE = """\
def gather(x):
    n = torch.tensor([{count}])
    counts = [torch.zeros_like(n) for _ in range(world)]
    dist.all_gather(counts, n)
    longest = int(max(counts))
    {fill}
    out = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(out, padded)
    {more}
    return {returned}
"""
PAD = "padded = F.pad(x, (0, 0, 0, longest - len(x)))"


@pytest.mark.parametrize(
    ("count", "fill", "more", "returned", "found"),
    [
        ("len(x)", PAD, "pass", "torch.cat(out)", True),
        ("x.shape[0]", "padded = x.new_zeros(longest, 8); padded[: len(x)] = x", "pass", "torch.stack(out)", True),
        (
            "len(x)",
            "more = longest - len(x); padded = torch.cat([x, x[-1:].repeat(more, 1)])",
            "pass",
            "torch.cat(out)",
            True,
        ),
        ("len(x)", PAD, "pass", "torch.cat([o[: int(c)] for o, c in zip(out, counts)])", False),
        ("len(x)", PAD, "pass", "torch.cat(out), counts", False),
        (
            "len(x)",
            PAD,
            "kept = [o[:c] for o, c in zip(out, counts)]",
            "torch.cat(kept) if kept else torch.cat(out)",
            False,
        ),
        ("len(x)", "padded = F.pad(x, (0, longest - len(x)), value=-100)", "pass", "torch.cat(out)", False),
        ("len(x)", "padded = x.new_full((longest,), -1)", "pass", "torch.cat(out)", False),
        ("loss", PAD, "pass", "torch.cat(out)", False),
    ],
    ids=[
        "padded",
        "filled",
        "once more",
        "cut",
        "with the counts",
        "cut before",
        "marked",
        "full of marks",
        "no lengths",
    ],
)
def test_what_fills_up_to_the_longest_rank_is_found_where_nothing_cuts_it_off(
    count: str, fill: str, more: str, returned: str, found: bool
) -> None:
    source = SOURCE.format(count=count, fill=fill, more=more, returned=returned)
    assert [one.returns.line for one in uncut_gathers({"a.py": source})] == ([10] if found else [])


def test_of_which_lengths_are_made_where_they_are_sent_matters_not() -> None:
    source = SOURCE.format(count="len(x)", fill=PAD, more="pass", returned="torch.cat(out)")
    source = source.replace("    n = torch.tensor([len(x)])\n", "").replace(
        "counts, n)", "counts, torch.tensor([len(x)]))"
    )
    assert len(list(uncut_gathers({"a.py": source}))) == 1
