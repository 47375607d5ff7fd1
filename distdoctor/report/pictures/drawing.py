"""What the pictures share: a picture, and a sheet of SVG to draw on. Texts are escaped, colours are the page's.

Colours are classes of the page (`k0` to `k7`, after Okabe and Ito: told apart by colour-blind people, in light and dark), and
never the only sign: every mark has a title or a letter as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from distdoctor.report.printable import one_line
from distdoctor.report.table import Table

COLOURS = 8
LETTER = 6.6  # pixels of one letter at 11 px, monospaced
ROW = 18


MOST_VIEWS = 32  # the page has a rule of style for each


@dataclass(frozen=True)
class View:
    """One of the ways to see a picture: what its button says, and whether it is one to look at."""

    label: str
    svg: Markup
    marked: bool = False


@dataclass(frozen=True)
class Picture:
    """One picture of a report. `caption` says what is to be seen, for those who do not see it, too."""

    name: str
    title: str
    caption: str
    svg: Markup
    table: Table
    legend: tuple[tuple[str, str], ...] = ()  # class, words
    views: tuple[View, ...] = ()  # where there are several to choose from; `svg` is the one that is chosen at first
    choice: str = ""  # what is chosen by them, for the control

    @property
    def panes(self) -> tuple[View, ...]:
        """What is drawn, one of it at a time."""
        return self.views or (View("", self.svg),)

    @property
    def first(self) -> int:
        """The pane that is shown at first."""
        return next((number for number, view in enumerate(self.views) if view.svg is self.svg), 0)

    @property
    def widest(self) -> int:
        """Pixels from left to right."""
        widths = (int(width) for view in self.panes for width in _WIDTH.findall(view.svg))
        return max(widths, default=0)


_WIDTH = re.compile(r'<svg [^>]* width="(\d+)"')


class Sheet:
    """An SVG of a fixed size, in pixels; it scrolls where the window is narrower."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self._marks: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """A box. `kind` are classes; `title` is what a pointer that rests on it shows."""
        box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{kind}"'
        self._marks.append(f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>")

    def text(self, x: float, y: float, words: object, kind: str = "", anchor: str = "start") -> None:
        """A line of text, its baseline at `y`."""
        more = f' class="{kind}"' if kind else ""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._marks.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}{where}>{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str, title: str = "", arrow: bool = False) -> None:
        """A line through points; `arrow`: with a head at its end."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        head = ' marker-end="url(#arrow)"' if arrow else ""
        words = f"<title>{escape(title)}</title>" if title else ""
        self._marks.append(f'<polyline points="{path}" class="{kind}"{head}>{words}</polyline>')

    def area(self, points: Sequence[tuple[float, float]], kind: str, title: str = "") -> None:
        """A filled shape."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._marks.append(f'<polygon points="{path}" class="{kind}"><title>{escape(title)}</title></polygon>')

    def done(self) -> Markup:
        """The element for the page."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.label)}" {size}>'
        return Markup("{}{}</svg>").format(Markup(head), Markup("".join(self._marks)))  # noqa: S704 - all of it escaped above


def colour(number: int) -> str:
    """The class of the colour with that number."""
    return f"k{number % COLOURS}"


def cut(words: str, letters: int) -> str:
    """At most so many letters, as the page shows them: what cannot be printed takes several."""
    words = one_line(words)
    return words if len(words) <= letters else f"{words[: max(letters - 1, 1)]}…"


def cut_front(words: str, letters: int) -> str:
    """The same, of words whose end says most: a path, the name of a layer."""
    words = one_line(words)
    return words if len(words) <= letters else f"…{words[-max(letters - 1, 1) :]}"


def ticks(most: float, count: int = 4) -> list[float]:
    """Round numbers from 0 up to `most`."""
    if most <= 0:
        return [0.0]
    raw = most / count
    size = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 10.0 ** -len(f"{1 / raw:.0f}")
    step = next((size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw), size * 10)
    return [step * number for number in range(int(most / step + 1e-9) + 1)]
