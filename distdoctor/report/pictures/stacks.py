"""The stacks of all ranks as one tree that grows to the right: as high as the share of ranks that are there."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.seen_live import newest_stacks
from distdoctor.recording.stacks import Stacks
from distdoctor.report.pictures.drawing import LETTER, Picture, Sheet, colour, cut
from distdoctor.report.stack_tree import Node, tree_of
from distdoctor.report.table import Table

MOST = 420.0  # pixels, of the whole tree where its boxes do not need more
MOST_LINES = 6  # of one box
COLUMN = 210.0
DEEPEST = 12


def stacks_of(recording: Recording) -> Stacks | None:
    """Those that were taken for this diagnosis, else the newest that somebody took while the job ran."""
    kept = newest_stacks(recording.seen_live)
    return recording.stacks or (kept.stacks if kept is not None else None)


def picture(recording: Recording) -> Picture | None:
    """None where nobody took stacks."""
    stacks = stacks_of(recording)
    root = tree_of(stacks) if stacks else None
    if stacks is None or root is None or not root.under:
        return None
    chains = list(_chains(root))
    return Picture(
        "stacks",
        "Where the ranks were: their stacks merged",
        "From left to right as the calls went inwards; a box is as high as the share of ranks that were in it. Runs of one "
        "child are one box. Where a column divides, the ranks part.",
        _draw(root),
        Table(
            "stacks",
            "merged stacks",
            ("ranks", "depth", "frames, outermost first"),
            tuple((named(ranks), depth, " > ".join(words)) for ranks, depth, words in chains),
        ),
    )


def _words(node: Node) -> str:
    path, function, line = node.key
    return f"{path.rpartition('/')[2]}:{line} {function}" if path else function


def _chain(node: Node) -> tuple[list[str], Node]:
    """The frames from a node inwards, as long as the same ranks are in them, and the last of them."""
    words = [_words(node)]
    while len(node.under) == 1 and len((child := next(iter(node.under.values()))).ranks) == len(node.ranks):
        node = child
        words.append(_words(node))
    return words, node


def _children(node: Node) -> list[Node]:
    return sorted(node.under.values(), key=lambda child: (-len(child.ranks), child.ranks))


def _chains(root: Node, depth: int = 0) -> Iterator[tuple[list[int], int, list[str]]]:
    for child in _children(root):
        words, last = _chain(child)
        yield child.ranks, depth, words
        yield from _chains(last, depth + 1)


def _least(node: Node) -> float:
    """Pixels that a node and what is under it need to be read."""
    words, last = _chain(node)
    return max(34.0 + 14 * (min(len(words), MOST_LINES) - 1) + 6, sum(map(_least, _children(last))))


def _depth(node: Node) -> int:
    _, last = _chain(node)
    return 1 + max(map(_depth, _children(last)), default=0)


def _draw(root: Node) -> Markup:
    tops = _children(root)
    least = sum(map(_least, tops))
    height = min(least * 1.3, max(MOST, least))
    columns = min(max(map(_depth, tops)), DEEPEST)
    sheet = Sheet(columns * COLUMN * 1.35 + 10, height + 10, "merged stacks of all ranks")
    _place(sheet, tops, 0, 4.0, height)
    return sheet.done()


def _place(sheet: Sheet, nodes: list[Node], column: int, top: float, height: float) -> None:
    """The boxes of one column between `top` and `top + height`: by ranks, and never too low to read."""
    if column >= DEEPEST:
        return
    ranks = sum(len(node.ranks) for node in nodes)
    free = max(height - sum(map(_least, nodes)), 0.0)
    width = COLUMN * 1.35
    for number, node in enumerate(nodes):
        tall = min(_least(node) + free * len(node.ranks) / ranks, height)
        words, last = _chain(node)
        kind = f"soft {colour(number if len(nodes) > 1 else 5)}"
        sheet.rect(4 + column * width, top, width - 6, tall - 4, kind, f"{named(node.ranks)}: {' > '.join(words)}")
        letters = int((width - 18) / LETTER)
        sheet.text(10 + column * width, top + 15, cut(named(node.ranks), letters), "strong")
        room = max(1, int((tall - 26) / 14))
        for line, part in enumerate(words[-room:]):
            sheet.text(10 + column * width, top + 30 + 14 * line, cut(part, letters))
        _place(sheet, _children(last), column + 1, top, tall)
        top += tall
