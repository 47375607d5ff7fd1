"""Who waits for whom: ranks in the same call are one node, the edges of a cycle are marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from markupsafe import Markup

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.hang.live.rank_activity import RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.report.pictures.drawing import LETTER, Picture, Sheet, colour, cut
from distdoctor.report.pictures.stacks import stacks_of
from distdoctor.report.table import Table

WIDTH, HEIGHT = 190.0, 56.0
MOST_NODES = 16


@dataclass(frozen=True)
class _Node:
    ranks: tuple[int, ...]
    words: str
    site: str
    waits: bool


def picture(recording: Recording) -> Picture | None:
    """By the records, else by the stacks; None where nobody waits for anybody."""
    found = _by_records(recording) or _by_stacks(recording)
    if found is None:
        return None
    import networkx as nx  # in here: it takes 0.1 s, and most jobs hang nowhere

    nodes, edges = found
    graph = nx.DiGraph(edges)
    rings = {node: number for number, ring in enumerate(nx.strongly_connected_components(graph)) for node in ring}
    sizes = [sum(1 for other in rings.values() if other == rings[node]) for node in rings]
    in_ring = {edge for edge in edges if rings[edge[0]] == rings[edge[1]] and edge[0] != edge[1]}
    about = "The thick edges form a cycle: nobody in it can go on. " if in_ring and max(sizes) > 1 else ""
    return Picture(
        "waits",
        "Who waits for whom",
        f"{about}An arrow leads from ranks that wait to those that they wait for; ranks in the same call are one box.",
        _draw(nodes, edges, in_ring),
        Table(
            "waits",
            "who waits for whom",
            ("ranks", "are in", "at", "wait for"),
            tuple(
                (
                    named(node.ranks),
                    node.words,
                    node.site,
                    "; ".join(named(nodes[b].ranks) for a, b in edges if a == number) or "-",
                )
                for number, node in enumerate(nodes)
            ),
        ),
        (("k0 soft", "waits"), ("k3 soft", "waits for no other rank")),
    )


def _by_records(recording: Recording) -> tuple[list[_Node], list[tuple[int, int]]] | None:
    try:
        verdict = derived(Verdict, recording)
    except NotSeen:
        return None
    # Waits of several ranks may have one divergence behind them.
    sides = list(dict.fromkeys(side for wait in verdict.waits for side in _sides(wait)))
    wanted = {rank for side in sides for rank in side.needs}
    if not wanted or len(sides) > MOST_NODES:
        return None
    inside: set[int] = {rank for side in sides for rank in side.ranks}
    nodes = [_Node(side.ranks, side.call.words, _at(side.call.site), True) for side in sides]
    rest: dict[tuple[str, str], list[int]] = {}
    standings = _standings(recording)
    for rank in sorted(wanted - inside):
        if rank in standings:  # what it did is more than how it was ended after that
            rest.setdefault((standings[rank].words, _at(standings[rank].site)), []).append(rank)
            continue
        ending = verdict.endings.get(rank)
        last = verdict.timeline(rank).last_site if rank in verdict.facts.timelines else None
        words = f"{ending.how} {ending.kind}".strip() if ending is not None else "is in no collective"
        rest.setdefault((words, f"last seen at {_at(last)}" if last else ""), []).append(rank)
    nodes += [_Node(tuple(ranks), words, site, False) for (words, site), ranks in rest.items()]
    edges = []
    for number, side in enumerate(sides):
        edges += [(number, other) for other, node in enumerate(nodes) if side.needs & set(node.ranks)]
    return nodes, [edge for edge in edges if edge[0] != edge[1]]


@dataclass(frozen=True)
class _Side:
    """Ranks in one call, and those that have not done their part, or did another one."""

    ranks: tuple[int, ...]
    call: Call
    needs: frozenset[int]


def _sides(wait: Wait) -> Iterator[_Side]:
    if wait.broken is None:
        yield _Side(tuple(sorted(wait.ranks)), wait.call, frozenset(wait.on))
        return
    everybody = frozenset(rank for variant in wait.broken.variants for rank in variant.ranks)
    for variant in wait.broken.variants:
        yield _Side(tuple(sorted(variant.ranks)), variant.call, everybody - set(variant.ranks))


def _standings(recording: Recording) -> Mapping[int, RankActivity]:
    """What each rank was doing by the stacks; {} where they do not show that some wait for others."""
    stacks = stacks_of(recording)
    stall = Stall.of(replace(recording, stacks=stacks)) if stacks else None
    return stall.standings if stall is not None and stall.waiting and stall.others else {}


def _by_stacks(recording: Recording) -> tuple[list[_Node], list[tuple[int, int]]] | None:
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for standing in _standings(recording).values():
        key = (standing.words, _at(standing.site), standing.waits_for_ranks)
        groups.setdefault(key, []).append(standing.rank)
    nodes = [_Node(tuple(ranks), *key) for key, ranks in list(groups.items())[:MOST_NODES]]
    edges = [(a, b) for a, one in enumerate(nodes) for b, other in enumerate(nodes) if one.waits and not other.waits]
    return (nodes, edges) if edges else None


def _at(site: object) -> str:
    path, line = getattr(site, "path", ""), getattr(site, "line", 0)
    return f"{path.rpartition('/')[2]}:{line}" if path else ""


def _draw(nodes: list[_Node], edges: list[tuple[int, int]], in_ring: set[tuple[int, int]]) -> Markup:
    middle_x, middle_y, places = _places(len(nodes))
    sheet = Sheet(2 * middle_x, 2 * middle_y, "wait-for graph")
    for a, b in edges:
        kind = "edge ring" if (a, b) in in_ring else "edge"
        words = f"{named(nodes[a].ranks)} waits for {named(nodes[b].ranks)}"
        sheet.line(_between(places[a], places[b], both=(b, a) in edges), kind, words, arrow=True)
    for (x, y), node in zip(places, nodes, strict=True):
        kind = f"soft {colour(0 if node.waits else 3)}"
        left, top = x - WIDTH / 2, y - HEIGHT / 2
        sheet.rect(left, top, WIDTH, HEIGHT, kind, f"{named(node.ranks)}: {node.words}")
        letters = int((WIDTH - 14) / LETTER)
        sheet.text(left + 7, top + 16, cut(named(node.ranks), letters), "strong")
        sheet.text(left + 7, top + 32, cut(node.words.replace("`", ""), letters))
        sheet.text(left + 7, top + 47, cut(node.site, letters), "quiet")
    return sheet.done()


def _places(count: int) -> tuple[float, float, list[tuple[float, float]]]:
    """The middle of the sheet, and the middles of the nodes: beside one another, else on a ring."""
    if count <= 3:
        gap = WIDTH + 70
        width = gap * count
        return width / 2, HEIGHT, [(gap / 2 + gap * number, HEIGHT) for number in range(count)]
    radius_x, radius_y = max(WIDTH * 0.95, WIDTH * count / 5.0), max(HEIGHT * 1.7, HEIGHT * count / 3.2)
    middle_x, middle_y = radius_x + WIDTH / 2 + 8, radius_y + HEIGHT / 2 + 8
    angles = [2 * math.pi * number / count - math.pi / 2 for number in range(count)]
    return middle_x, middle_y, [(middle_x + radius_x * math.cos(a), middle_y + radius_y * math.sin(a)) for a in angles]


def _between(one: tuple[float, float], other: tuple[float, float], both: bool) -> list[tuple[float, float]]:
    """From the edge of one box to the edge of another; two opposite arrows keep apart."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    far = math.hypot(dx, dy) or 1.0
    side = 9.0 if both else 0.0
    aside = (-dy / far * side, dx / far * side)

    def edge(at: tuple[float, float], sign: float) -> tuple[float, float]:
        scale = min((WIDTH / 2 + 5) / abs(dx) if dx else math.inf, (HEIGHT / 2 + 5) / abs(dy) if dy else math.inf)
        return at[0] + sign * dx * scale + aside[0], at[1] + sign * dy * scale + aside[1]

    return [edge(one, 1.0), edge(other, -1.0)]
