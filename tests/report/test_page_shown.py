"""The page as people see it: on a phone, on paper, by keyboard, in light and dark, with eyes that see fewer colours."""

from __future__ import annotations

import itertools
import re
import shutil
from importlib import resources
from pathlib import Path

import pytest
from browser import chromium
from sick import diagnosis_of

from distdoctor.report import html

SHOWN = ("DD101", "DD108", "DD116", "DD202", "DD301", "DD405", "DD504")  # with every picture among them
PHONE, PAPER = 390, 718  # pixels; A4 between margins of 1 cm
needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")

# What sticks out to the right and is not in a region that scrolls.
STICKS_OUT = """JSON.stringify([...document.querySelectorAll("body *")].filter(one => !one.closest(".scroll, pre, .skip")
  && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80)))"""
# On paper nothing scrolls.
IS_CUT = """JSON.stringify([...document.querySelectorAll("main *, header *")].filter(one => one.getBoundingClientRect().width
  && !one.closest("marker, .skip") && one.getBoundingClientRect().right > innerWidth + 1)
  .map(one => one.outerHTML.slice(0, 80)))"""
HIDDEN_EVIDENCE = (
    """[...document.querySelectorAll(".finding details.opens")].filter(one => one.offsetHeight < 40).length"""
)
CLOSED = """[...document.querySelectorAll(".picture-table, .handbook")].filter(one => one.offsetHeight).length"""
STOPS = """[...document.querySelectorAll("a[href], summary, [tabindex], input:checked")]
  .filter(one => one.checkVisibility({contentVisibilityAuto: true})).length"""
STANDS_OUT = """(one => one === document.body ? "" : one.outerHTML.slice(0, 60) + "|"
  + (getComputedStyle(one).outlineStyle != "none" || one.matches(".skip") || (one.matches(".views input")
  && getComputedStyle(one.parentElement).outlineStyle != "none")))(document.activeElement)"""


@needs_browser
@pytest.mark.job
def test_a_phone_and_paper_show_all_of_it_and_every_control_is_reached_by_keyboard(tmp_path: Path) -> None:
    for code in SHOWN:
        (tmp_path / f"{code}.html").write_text(html.render(diagnosis_of(code)), "utf-8")

    with chromium(tmp_path / "profile") as tab:
        for code in SHOWN:
            tab.show(tmp_path / f"{code}.html")
            tab.ask("Emulation.setDeviceMetricsOverride", width=PHONE, height=844, deviceScaleFactor=1, mobile=True)
            assert (code, tab.value("document.documentElement.scrollWidth")) == (code, PHONE)
            assert (code, tab.value(STICKS_OUT)) == (code, "[]")
            tab.ask("Emulation.setDeviceMetricsOverride", width=PAPER, height=1000, deviceScaleFactor=1, mobile=False)
            tab.ask("Emulation.setEmulatedMedia", media="print")
            assert (code, tab.value(IS_CUT)) == (code, "[]")
            assert (code, tab.value(HIDDEN_EVIDENCE), tab.value(CLOSED)) == (code, 0, 0)
            tab.ask("Emulation.setEmulatedMedia", media="")
        stops, reached = tab.value(STOPS), []
        while (len(reached) <= stops) and (tab.press("Tab") or (now := tab.value(STANDS_OUT))):
            reached.append(now)
        complaints = tab.complaints

    assert len(reached) == stops > 8
    assert [one for one in reached if not one.endswith("|true")] == []
    assert complaints == []


# --- the colours -----------------------------------------------------------------------------------------------------------

TEXTS = ("ink", "quiet", "error", "warning", "note", "good", "link")
SERIES = [f"c{number}" for number in range(8)]
Colour = tuple[float, ...]
# What is seen without one of the three kinds of cones: Machado, Oliveira and Fernandes, 2009, at full severity, on linear RGB.
SIGHT = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def palette(scheme: str) -> tuple[dict[str, Colour], float]:
    """The colours of the page by name, linear; and how much of a soft fill covers the paper."""
    page = resources.files("distdoctor.report").joinpath("page.html.jinja").read_text("utf-8")
    light, dark = re.findall(r":root \{ (--ink.*?|color-scheme: light dark.*?)\}", page, re.DOTALL)
    found = {}
    for block in (light, dark)[: 1 + (scheme == "dark")]:
        found |= dict(re.findall(r"--(\w+): ([^;]+);", block))
    colours = {name: value for name, value in found.items() if value.startswith("#")}
    return {name: linear(value) for name, value in colours.items()}, float(found["soft"])


def linear(value: str) -> Colour:
    digits = value[1:] if len(value) == 7 else "".join(2 * digit for digit in value[1:])
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def contrast(one: Colour, other: Colour) -> float:
    """WCAG 2.2's ratio."""
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (one, other))
    return (high + 0.05) / (low + 0.05)


def covered(fill: Colour, paper: Colour, share: float) -> Colour:
    """A fill that lets the paper through; browsers mix as it is encoded."""
    mixed = (
        share * over ** (1 / 2.2) + (1 - share) * under ** (1 / 2.2) for over, under in zip(fill, paper, strict=True)
    )
    return tuple(part**2.2 for part in mixed)


def distance(one: Colour, other: Colour, sight: tuple[Colour, ...]) -> float:
    """How different two colours look: CIE 1976, 2.3 is just to be seen."""
    (l1, a1, b1), (l2, a2, b2) = (
        lab(tuple(max(sum(map(float.__mul__, row, c)), 0) for row in sight)) for c in (one, other)
    )
    return ((l1 - l2) ** 2 + (a1 - a2) ** 2 + (b1 - b2) ** 2) ** 0.5


def lab(colour: Colour) -> Colour:
    r, g, b = colour
    x, y, z = (
        0.4124 * r + 0.3576 * g + 0.1805 * b,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        0.0193 * r + 0.1192 * g + 0.9505 * b,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x / 0.95047, y, z / 1.08883))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_marks_stand_out_from_what_is_behind_them(scheme: str) -> None:
    colours, soft = palette(scheme)

    for behind in ("paper", "card"):
        assert {name: c for name in TEXTS if (c := contrast(colours[name], colours[behind])) < 4.5} == {}
        assert {name: c for name in SERIES if (c := contrast(colours[name], colours[behind])) < 3} == {}
    on_boxes = {
        (text, name): ratio
        for name in SERIES
        for text in ("ink", "quiet")
        if (ratio := contrast(colours[text], covered(colours[name], colours["paper"], soft))) < 4.5
    }
    assert on_boxes == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_of_a_picture_look_different_to_everybody(scheme: str, sight: str) -> None:
    colours, _ = palette(scheme)

    alike = {
        (one, other): far
        for one, other in itertools.combinations(SERIES, 2)
        if (far := distance(colours[one], colours[other], SIGHT[sight])) < 12
    }

    assert alike == {}
