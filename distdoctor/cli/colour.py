"""Colours for reports on a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from distdoctor.report.links import link_of

_PLACE = re.compile(r"(?P<path>\S+\.py):\d+")
_PAGE = re.compile(r"distdoctor explain (?P<code>[A-Z]+\d+)")


class Findings(RegexHighlighter):
    """Marks the words of a text report, and links the places in files that are there and the pages of the handbook."""

    base_style = "distdoctor."
    highlights: ClassVar[list[str]] = [
        r"(?m)^(?P<error>[A-Z]+\d+ error)",
        r"(?m)^(?P<warning>[A-Z]+\d+ warning)",
        r"(?m)^(?P<note>[A-Z]+\d+ note)",
        r"(?m)^  (?P<fix>fix|gain) ",
        r"(?m)^  (?P<label>why|more|then) ",
        r"(?P<place>\S+\.py:\d+)",
        r"(?m)^(?P<healthy>healthy):",
    ]

    def highlight(self, text: Text) -> None:
        super().highlight(text)
        for found in _PLACE.finditer(text.plain):
            path = Path(found["path"]).absolute()
            if path.is_file():
                text.stylize(Style(link=path.as_uri()), *found.span())
        for found in _PAGE.finditer(text.plain):
            if link := link_of(found["code"]):
                text.stylize(Style(link=link), *found.span())


THEME = Theme(
    {
        "distdoctor.error": "bold red",
        "distdoctor.warning": "bold yellow",
        "distdoctor.note": "bold cyan",
        "distdoctor.fix": "bold green",
        "distdoctor.label": "dim",
        "distdoctor.place": "cyan",
        "distdoctor.healthy": "bold green",
    }
)


def console(stream: TextIO) -> Console:
    """A console that colours reports, also where the stream is no terminal (`--color always`)."""
    return Console(file=stream, theme=THEME, highlighter=Findings(), force_terminal=True)
