"""Where more is to be read: on the project's pages, as soon as its package names them (`[project.urls]`), else in its files."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from pathlib import Path

from distdoctor.diagnosis.handbook import file_of

# https://packaging.python.org/en/latest/specifications/well-known-project-urls/
_HOME = ("homepage", "source", "repository", "sourcecode", "github")
_PAGES = ("documentation", "docs")


def home() -> str:
    """The address of the project, "" while it has none."""
    return _address(_HOME) or _address(_PAGES)


def page_of(code: str) -> str:
    """The address of the page about a check of ours in the documentation, "" while that has none."""
    pages = _address(_PAGES)
    return f"{pages.rstrip('/')}/reference/codes/{code}/" if pages and re.fullmatch(r"DD\d+", code) else ""


def link_of(code: str) -> str:
    """What a terminal opens for a code: its page, else the file whose head is the page; "" where there is neither."""
    file = file_of(code)
    return page_of(code) or (Path(file).as_uri() if file else "")


def _address(labels: tuple[str, ...]) -> str:
    return next((url for label in labels if (url := _addresses().get(label))), "")


@cache
def _addresses() -> dict[str, str]:
    """By label, as the specification compares labels."""
    stated = importlib.metadata.metadata("distdoctor").get_all("Project-URL") or []
    pairs = [one.partition(",") for one in stated]
    return {re.sub(r"[\W_]", "", label).lower(): url.strip() for label, _, url in pairs}
