"""Who drew which part of the data set, epoch by epoch, and which orders were repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.data.sample_account import LoaderAccount, SampleAccounts
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.derived import derived
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording
from distdoctor.report.pictures.drawing import Picture, Sheet, cut
from distdoctor.report.table import Table

BINS = 96
BIN = 7.0
LEFT = 130.0
LINE = 14
NAME = 19  # letters to the left of a strip
MOST_EPOCHS, MOST_RANKS = 4, 12


def coverage(recording: Recording) -> Picture | None:
    """The data set from left to right, one strip a rank: how much of each part it drew; and all ranks together."""
    orders = _orders(recording)
    if orders is None:
        return None
    epochs = [one for one in orders.together() if one.trains and one.one.length > 0 and _has_indices(one)][
        -MOST_EPOCHS:
    ]
    if not epochs:
        return None
    alike = [_alike(one) for one in epochs]
    rows = sum(min(len(groups), MOST_RANKS) + 1 for groups in alike)
    sheet = Sheet(LEFT + BINS * BIN + 150, 24 * len(epochs) + LINE * rows + 10, "who drew which samples")
    top, found = 0.0, []
    for number, (one, groups) in enumerate(zip(epochs, alike, strict=True), start=1):
        top += 16
        left_out = f"; {len(groups) - MOST_RANKS} more rows are left out" if len(groups) > MOST_RANKS else ""
        heading = f"pass {number} of the last {len(epochs)}, {one.one.length:,} samples{left_out}"
        sheet.text(0, top, heading, "strong")
        total = np.sum([share * len(ranks) for share, ranks in groups], axis=0)
        for share, ranks in groups[:MOST_RANKS]:
            name = named(ranks) if len(ranks) < 3 else f"{cut(compress(ranks), NAME - 7)} ({len(ranks)})"
            _strip(sheet, top + 4, name, share)
            top += LINE
        counts = _counts(one, total)
        _together(sheet, top + 4, total, counts)
        top += LINE + 8
        found.append((number, one, counts))
    return Picture(
        "coverage",
        "Which samples each rank drew",
        "The data set from left to right, one strip for ranks that drew the same parts. The darker a piece, the more of it was "
        "drawn; below, what all ranks drew together: once, several times, or not at all.",
        sheet.done(),
        Table(
            "coverage",
            "samples by pass",
            ("pass", "ranks", "samples", "drawn once", "drawn more than once", "not drawn"),
            tuple((number, named(one.passes), one.one.length, *counts) for number, one, counts in found),
            tuple(
                (str(number), named(one.passes), f"{one.one.length:,}", *(f"{share:.0%}" for share in counts))
                for number, one, counts in found
            ),
        ),
        (("k5", "drawn"), ("k1", "by several ranks or several times"), ("none", "by nobody")),
    )


def _alike(one: Together) -> list[tuple[NDArray[np.float64], list[int]]]:
    """The shares of each part of the data set, and the ranks that drew these: the most of them first."""
    groups: dict[bytes, tuple[NDArray[np.float64], list[int]]] = {}
    for rank, of_rank in one.passes.items():
        shares = _shares(of_rank)
        groups.setdefault(shares.tobytes(), (shares, []))[1].append(rank)
    return sorted(groups.values(), key=lambda group: (-len(group[1]), group[1]))


def orders(recording: Recording) -> Picture | None:
    """Epoch by epoch and rank by rank, whether an order was new or the one of an earlier epoch."""
    if _orders(recording) is None:
        return None
    every = derived(SampleAccounts, recording).loaders
    loaders = [one for one in every if one.purpose == "trains" and len(one.epochs) > 1]
    if not loaders:
        return None
    loader = max(loaders, key=lambda one: len(one.epochs))
    rows = _rows_of_orders(loader)
    shown = sorted(rows.items(), key=lambda row: row[1])[:MOST_RANKS]
    names = [epoch.number for epoch in loader.epochs][:BINS]
    sheet = Sheet(LEFT + 44 * len(names) + 20, 26 + 24 * len(shown), "orders by epoch and rank")
    for column, number in enumerate(names):
        sheet.text(LEFT + 44 * column + 18, 14, number, "quiet", "middle")
    for line, (same, ranks) in enumerate(shown):
        sheet.text(0, 37 + 24 * line, f"{named(ranks)}"[:18])
        for column, earlier in enumerate(same[: len(names)]):
            kind = "soft k5" if earlier < 0 else "soft k1"
            words = "an order of its own" if earlier < 0 else f"the order of epoch {earlier}"
            sheet.rect(LEFT + 44 * column, 22 + 24 * line, 38, 20, kind, f"epoch {names[column]}: {words}")
            sheet.text(LEFT + 44 * column + 19, 36 + 24 * line, "new" if earlier < 0 else f"={earlier}", "", "middle")
    return Picture(
        "orders",
        "Orders by epoch",
        "Each box is one epoch of a rank; =0 marks an epoch that was drawn in the order of epoch 0.",
        sheet.done(),
        Table(
            "orders",
            "orders by epoch and rank; -1: an order of its own",
            ("ranks", *(f"epoch {number}" for number in names)),
            tuple((named(ranks), *same[: len(names)]) for same, ranks in shown),
        ),
        (("soft k5", "an order of its own"), ("soft k1", "the order of an earlier epoch")),
    )


def _orders(recording: Recording) -> SampleOrders | None:
    try:
        return derived(SampleOrders, recording) if "samples" in recording.streams else None
    except NotSeen:
        return None


def _has_indices(one: Together) -> bool:
    return all(of_rank.comparable and len(of_rank.indices) for of_rank in one.passes.values())


def _shares(one: LoaderPass) -> NDArray[np.float64]:
    """How often each part of the data set was drawn by one rank, as a share of the part."""
    edges = np.unique(np.linspace(0, one.length, min(BINS, one.length) + 1).round())  # between whole samples
    counts, _ = np.histogram(one.indices, bins=edges)
    found: NDArray[np.float64] = counts * one.keep_one_in / np.diff(edges)
    return found


def _strip(sheet: Sheet, top: float, name: str, shares: NDArray[np.float64]) -> None:
    sheet.text(0, top + 10, name)
    wide = BINS * BIN / len(shares)
    sheet.rect(LEFT, top, BINS * BIN, LINE - 3, "none")
    for part, share in enumerate(shares):
        if share > 0.02:
            depth = f"d{min(4, max(1, round(4 * share)))}"
            sheet.rect(LEFT + part * wide, top, wide, LINE - 3, f"k5 {depth}")
    sheet.text(LEFT + BINS * BIN + 6, top + 10, f"{shares.mean():.0%} of the samples", "quiet")


def _together(sheet: Sheet, top: float, total: NDArray[np.float64], counts: Sequence[float]) -> None:
    sheet.text(0, top + 10, "all ranks", "strong")
    wide = BINS * BIN / len(total)
    for part, times in enumerate(total):
        some = f"k5 d{min(4, max(1, round(4 * times)))}" if times > 0.02 else "none"
        kind = "k1" if times > 1.25 else "k5" if times > 0.75 else some
        sheet.rect(LEFT + part * wide, top, wide, LINE - 3, kind, f"drawn {times:.1f} times")
    _, more, never = counts
    words = f"{more:.0%} several times" if more > 0.02 else f"{never:.0%} by nobody" if never > 0.02 else "each once"
    sheet.text(LEFT + BINS * BIN + 6, top + 10, words, "quiet")


def _counts(one: Together, total: NDArray[np.float64]) -> Sequence[float]:
    """Shares of the data set that were drawn once, more than once, not at all; about, by parts, where only some are on record."""
    passes = one.passes.values()
    if all(of_rank.keep_one_in == 1 for of_rank in passes):
        times = np.unique(np.concatenate([of_rank.indices for of_rank in passes]), return_counts=True)[1]
        more, never = float(np.sum(times > 1)) / one.one.length, max(0.0, 1 - len(times) / one.one.length)
    else:
        more, never = float(np.mean(total > 1.25)), float(np.mean(total < 0.5))
    return (round(1 - more - never, 3), round(more, 3), round(never, 3))


def _rows_of_orders(loader: LoaderAccount) -> dict[tuple[int, ...], list[int]]:
    by_rank: dict[int, list[int]] = {}
    for epoch in loader.epochs:
        for share in epoch.shares:
            by_rank.setdefault(share.rank, []).append(share.same_as)
    rows: dict[tuple[int, ...], list[int]] = {}
    for rank, same in by_rank.items():
        rows.setdefault(tuple(same), []).append(rank)
    return rows
