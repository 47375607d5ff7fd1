"""What is said of ranks that parted: which expression in the source decided, and where its value became a rank's own."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Self

from distdoctor.diagnosis.source.rank_guard import is_about_rank, of_test
from distdoctor.diagnosis.source.rank_local import Hop
from distdoctor.diagnosis.source.rank_words import lets_one_in
from distdoctor.recording.recording import SourceLine

LEAST = 1.0  # of weight, to be worth a word
STEPS_SHOWN = 5
RANKS = 64  # of which one is named


@dataclass(frozen=True)
class Decision:
    """`test` decides at `site`. `way`: the lines from there to the expression that differs between ranks, that one last."""

    site: SourceLine
    test: str
    way: tuple[tuple[SourceLine, str], ...] = ()
    call: SourceLine = field(default_factory=SourceLine)  # under the test, when it is what leads to one of the lines
    also: tuple[SourceLine, str] | None = None  # what may as well be the expression that differs
    exit: tuple[SourceLine, str] | None = None  # the statement under the test that leads away from one of the lines
    stops_a_framework: bool = False  # what is under the test ends a loop that is a framework's
    cuts_the_graph: bool = False  # what is under the test gives back what has no backward

    @classmethod
    def of(cls, first: Hop, way: tuple[Hop, ...], also: Hop | None) -> Self:
        """The decision of a step, with the way from there to what differs, of which a long one is shortened in the middle."""
        site = SourceLine(first.path, first.line, first.function)
        rest = [
            (SourceLine(s.path, s.line, s.function), s.text)
            for s in way[1:]
            if (s.path, s.line) != (site.path, site.line) and (s is way[-1] or not _is_literal(s.text))
        ]
        if len(rest) > STEPS_SHOWN:  # a name that is only handed on says nothing
            rest = [one for one in rest if not one[1].isidentifier() or one is rest[-1]]
        lines = list(dict.fromkeys(place for place, _ in rest))
        texts = dict(rest)
        shown = lines if len(lines) <= STEPS_SHOWN else [*lines[: STEPS_SHOWN // 2], *lines[-STEPS_SHOWN // 2 :]]
        other = (SourceLine(also.path, also.line, also.function), also.text) if also is not None else None
        return cls(site, first.text, tuple((place, texts[place]) for place in shown), also=other)

    @property
    def decides_alone(self) -> bool:
        """Whether it is a question that all ranks can answer together, and not a loop or a value."""
        return self.test.startswith(("if ", "while "))

    @property
    def handles_errors(self) -> bool:
        """Whether it is a handler: a rank went there because it raised something."""
        return self.test.startswith("except")

    @property
    def is_loop(self) -> bool:
        """Whether it is what a loop goes through: the ranks have different numbers of turns."""
        return self.test.startswith("for ")

    @property
    def question(self) -> str:
        """The test without the word before it."""
        return self.test.removeprefix("if ").removeprefix("while ")

    @property
    def comes_from_the_rank(self) -> bool:
        """Whether the test, or what its answer depends on, is a question about the rank."""
        texts = [text for _, text in (*self.way, *((self.also,) if self.also else ()))]
        return self.asks_for_the_rank or any(
            is_about_rank(node) for text in texts if (node := _parsed(text)) is not None
        )

    @property
    def rank_named(self) -> int | None:
        """The one rank that the test lets through, or keeps out; None when it asks for anything else."""
        expression = self._expression
        if expression is None or self.test.startswith("while "):
            return None
        if self._is_decorator and lets_one_in(expression):
            return 0
        guard = of_test(expression)
        answers = [guard.lets_through(rank) for rank in range(RANKS)]
        single = [answer for answer in (True, False) if answers.count(answer) == 1 and None not in answers]
        return answers.index(single[0]) if single else None

    @property
    def asks_for_the_rank(self) -> bool:
        """Whether the test, or a part of it, is a question about the rank."""
        test = self._expression
        if test is None:
            return False
        if self._is_decorator and lets_one_in(test):
            return True
        parts = (node for node in ast.walk(test) if isinstance(node, ast.Compare | ast.Name | ast.Attribute))
        return any(of_test(part).on_rank for part in parts)

    @property
    def _is_decorator(self) -> bool:
        return not self.decides_alone

    @property
    def _expression(self) -> ast.expr | None:
        found = _parsed(self.question)
        return found.body if isinstance(found, ast.Expression) else None

    @property
    def words(self) -> str:
        """`while not budget.exhausted()` (train.py:49), by `time.monotonic() - self.t0 > self.seconds` (train.py:19)."""
        here = f"`{self.test}` ({_at(self.site)})"
        return f"{here}, by `{self.way[-1][1]}` ({_at(self.way[-1][0])})" if self.way else here


def _parsed(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError:
        return None


def _is_literal(text: str) -> bool:
    parsed = _parsed(text)
    return parsed is not None and isinstance(parsed.body, ast.Constant)


def _at(site: SourceLine) -> str:
    return site.short
