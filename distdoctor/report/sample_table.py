"""The verdict on data: the answer in one line, then who drew what, loader by loader, epoch by epoch, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.data.sample_account import EpochAccount, LoaderAccount, SampleAccounts, Share
from distdoctor.diagnosis.data.samples import MATRIX_RANKS
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording
from distdoctor.recording.resumption import Resumption
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.report.text import shown

EPOCHS = 12  # of one loader; the first and the last ones where there are more
_APART = "the ranks' data sets do not hold the same (made without a common seed, or cut to a share on each rank)"
HEAD = ("epoch", "rank", "drawn", "distinct", "padding", "order")


def render(recording: Recording, findings: Iterable[Finding] = (), base: str = "", unasked: Sequence[str] = ()) -> str:
    """The table as text; one line that says why where no loader was read. `findings`: those of the checks on data; `base`: the
    folder that paths are shown relative to; `unasked`: codes of the checks on data that could not look."""
    try:
        loaders = derived(SampleAccounts, recording).loaders
    except NotSeen as reason:
        return f"no verdict on data: {reason}\n"
    blocks = [answer(loaders, list(findings), unasked), *(_loader(one, base) for one in loaders)]
    if recording.resumption is not None:
        blocks.append(_resumption(recording.resumption))
    return "\n\n".join(blocks) + "\n"


def _resumption(found: Resumption) -> str:
    if found.trouble:
        return f"resumption: not compared, {found.trouble}"
    words = [
        f"resume after step {found.step}, {found.into_epoch:,} of {found.of_epoch:,} samples into epoch {found.epoch}:",
        f"{found.repeated:,} samples repeat, {found.lost:,} are lost; the resumed job {found.order}",
    ]
    names = (("repeat", found.examples[0]), ("are lost", found.examples[1]))
    words += [f"for example {', '.join(map(str, some))} {verb}" for verb, some in names if some]
    return "\n  ".join(words)


def answer(loaders: Sequence[LoaderAccount], findings: Sequence[Finding], unasked: Sequence[str] = ()) -> str:
    """The first line: what is wrong first, or what was looked at."""
    wrong = [one for one in findings if one.severity != NOTE]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return f"not every rank reads the right data: {wrong[0].code} {wrong[0].title}{more}"
    training = [one for one in loaders if one.purpose == "trains"]
    if not training:
        return "nothing is wrong with what was read, and no optimizer stepped while a loader was read: no training was seen"
    epochs = [epoch for one in training for epoch in one.epochs]
    ranks = {rank for epoch in epochs for rank in epoch.ranks}
    if unasked:
        looked = f"no check found anything wrong, and {', '.join(unasked)} could not look"
        return f"what {named(ranks)} read to train: {_facts(epochs)}; {looked}"
    return f"nothing is wrong with what {named(ranks)} read to train: {_facts(epochs)}"


def _facts(epochs: Sequence[EpochAccount]) -> str:
    shared = sum(epoch.shared for epoch in epochs)
    words = [f"{len(epochs)} epoch{'s' if len(epochs) > 1 else ''}"]
    several = [epoch for epoch in epochs if len(epoch.ranks) > 1]
    if several and all(epoch.comparable for epoch in several):
        words.append(f"{shared:,} samples drawn by more than one rank")
    elif several:
        words.append("but whether ranks share samples cannot be told (see below)")
    known = [epoch.unseen for epoch in epochs if epoch.unseen >= 0]
    if known:
        words.append(f"at most {max(known):,} unseen in an epoch" if max(known) else "none unseen")
    padded = sum(share.padding for epoch in epochs for share in epoch.shares)
    return ", ".join([*words, f"{padded:,} drawn again as padding"] if padded else words)


def _loader(loader: LoaderAccount, base: str) -> str:
    one = loader.one
    size = f"{one.length:,} samples of {one.data.name}" if one.length >= 0 else f"{one.data.name} without a length"
    head = f"{shown(loader.made_line or loader.loop_line, base)}, {one.sampler_name or 'no sampler'}, {size}, {loader.purpose}"
    if one.flags & PassFlag.ITERABLE:
        head += " (iterable: batches are counted, by the first sample of each)"
    left_out = max(0, len(loader.epochs) - EPOCHS)
    half = EPOCHS // 2
    some = loader.epochs if not left_out else (*loader.epochs[:half], *loader.epochs[-half:])
    rows = [HEAD, *(row for epoch in some for row in _rows(epoch))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += _all_remarks(some)
    if left_out:
        lines.append(f"{left_out} epochs between them are left out")
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _rows(epoch: EpochAccount) -> list[tuple[str, ...]]:
    """One row for all ranks with the same numbers."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for share in epoch.shares:
        alike.setdefault(_cells(share, epoch), []).append(share.rank)
    return [(str(epoch.number), compress(ranks), *cells) for cells, ranks in alike.items()]


def _cells(share: Share, epoch: EpochAccount) -> tuple[str, ...]:
    about = "~" if epoch.keep_one_in > 1 else ""
    order = f"as epoch {share.same_as}" if share.same_as >= 0 else "its own"
    drawn = f"{share.drawn:,}" + ("" if share.over else " (left early)")
    return drawn, f"{about}{share.distinct:,}", f"{share.padding:,}" if share.padding else "-", order


def _all_remarks(epochs: Sequence[EpochAccount]) -> list[str]:
    """What is said of each epoch, once for all epochs of which it is true."""
    said: dict[tuple[str, ...], list[int]] = {}
    for epoch in epochs:
        words = tuple(_remarks(epoch))
        if words:
            said.setdefault(words, []).append(epoch.number)
    return [
        f"epoch{'s' if len(numbers) > 1 else ''} {compress(numbers)}: {line}"
        for words, numbers in said.items()
        for line in words
    ]


def _remarks(epoch: EpochAccount) -> list[str]:
    about = "about " if epoch.keep_one_in > 1 else ""
    words = []
    if not epoch.comparable and len(epoch.shares) > 1:
        why = "the samples have no index" if epoch.without_index else _APART
        words.append(f"{why}: what ranks share cannot be told")
    if epoch.unseen > 0:
        why = ": less than a batch of each rank, as drop_last leaves out" if epoch.dropped else ""
        words.append(f"{about}{epoch.unseen:,} of {epoch.length:,} samples were drawn by nobody{why}")
    if epoch.shared:
        words.append(f"{about}{epoch.shared:,} samples were drawn by more than one rank (padding not counted)")
        words += _matrix(epoch)
    return words


def _matrix(epoch: EpochAccount) -> list[str]:
    """How many samples each pair of ranks shares, as a matrix where it fits."""
    if len(epoch.ranks) == 2:
        return []
    if len(epoch.ranks) > MATRIX_RANKS:
        pairs = ", ".join(f"{a} and {b}: {count:,}" for a, b, count in epoch.pairs[:8])
        return [f"most in common: {pairs}"]
    count = {frozenset((a, b)): n for a, b, n in epoch.pairs}
    rows = [["rank", *(str(rank) for rank in epoch.ranks)]]
    for a in epoch.ranks:
        rows.append([str(a), *("-" if a == b else f"{count.get(frozenset((a, b)), 0):,}" for b in epoch.ranks)])
    width = max(len(cell) for row in rows for cell in row)
    return ["in common: " + " ".join(cell.rjust(width) for cell in row) for row in rows]
