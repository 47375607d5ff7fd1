"""The page: whole in itself, safe with hostile names, small at a thousand ranks, and with its pictures also as tables."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import chromium
from sick import PLUGINS, diagnosis_of, fresh_diagnosis_of, own

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Prescription
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.report import html
from distdoctor.report.pictures import gallery
from distdoctor.report.pictures.call_times import Span, draw
from distdoctor.report.pictures.drawing import LETTER, cut, cut_front
from distdoctor.report.pictures.gallery import pictures
from distdoctor.report.pictures.samples import coverage
from distdoctor.testing import recording
from distdoctor.testing.samples import sampled_job

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """The elements of a page: that every one is closed, and what they point at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.points_at: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.points_at += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")
        ]
        assert not [name for name, _ in attrs if name.startswith("on")], tag
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def sick(code: str) -> Diagnosis:
    return diagnosis_of(code)


@pytest.mark.parametrize("code", PLUGINS.checks)
def test_a_page_needs_nothing_else_and_draws_all_that_it_can(code: str) -> None:
    page = html.render(sick(code))

    parsed = Page(page)
    assert parsed.open == []
    assert not parsed.names & {"script", "link", "iframe", "img", "object", "embed", "form"}
    assert [one[:29] for one in parsed.points_at if not one.startswith(("#", "data:application/json;base64,"))] == []
    assert "default-src 'none'" in page
    assert not re.search(r"url\((?!#arrow)|@import", page)
    assert "could not be drawn" not in page


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("DD101", ["collectives", "waits"]),
        ("DD108", ["collectives", "waits"]),
        ("DD116", ["stacks", "waits"]),
        ("DD301", ["coverage", "orders"]),
        ("DD202", ["divergence"]),
        ("DD405", ["memory"]),
        ("DD504", ["step_phases", "arrivals"]),
    ],
)
def test_the_pictures_that_belong_to_the_verdict_come_first_each_with_a_table(code: str, names: list[str]) -> None:
    mine, _ = pictures(sick(code))

    assert [one.name for one in mine if one.name in names] == names
    assert all(one.table.cells for one in mine)
    assert all(len(row) == len(one.table.columns) for one in mine for row in one.table.cells)


def test_a_cycle_is_marked() -> None:
    mine, _ = pictures(sick("DD108"))

    assert "edge ring" in str(mine[-1].svg)
    assert "form a cycle" in mine[-1].caption


def test_hostile_names_stay_text() -> None:
    script = recording(ranks=2)
    script.collective("all_reduce", [8], site=SourceLine(f"/job/{HOSTILE}.py", 41, HOSTILE)).skipped_by(1)
    script.collective("barrier", site=SourceLine(f"/job/{HOSTILE}.py", 42, HOSTILE))
    found = fresh_diagnosis_of(script.finished(survivors="killed"))
    found = replace(found, job=replace(found.job, argv=(HOSTILE,)))

    page = html.render(found)

    assert HOSTILE not in page
    assert "<script" not in page
    assert Page(page).open == []


def test_memory_is_drawn_without_the_libraries_and_with_what_remedies_would_take_off() -> None:
    (on_host, *_), _ = pictures(sick("DD405"))
    (on_device, *_), _ = pictures(sick("DD407"))

    assert "400 MiB of it libraries and data from before training, not drawn here" in on_host.caption
    assert [words for _, words in on_host.legend][:1] == ["parameters"]
    assert "fully_shard over 2 ranks: about 3.91 GiB" in str(on_device.svg)
    assert on_device.table.notes == (
        "fully-shard, rank 0: fully_shard over 2 ranks: about 3.91 GiB (of parameters, gradients, optimizer state)",
    )


def test_what_does_not_grow_at_all_has_an_axis_that_people_read() -> None:
    (picture, *_), _ = pictures(sick("DD401"))

    assert picture.name == "memory"
    assert str(picture.svg).count(">0 bytes<") == 1


def test_all_sides_of_different_calls_have_not_come_back() -> None:
    """DistributedDataParallel's all_reduce is asynchronous: it has returned to its caller, and is not over."""
    script = recording(ranks=3)
    script.collective("all_reduce", [1], site="train.py:7 metric").step()
    script.collective("all_reduce", [676], site="train.py:28 train", asynchronous=True, only=(0, 1)).wait(only=(0, 1))
    script.collective("barrier", site="train.py:14 evaluate", only=2)
    (first, *_), _ = pictures(fresh_diagnosis_of(script.live(silent_for=12)))

    assert [row[-1].split(", since")[0] for row in first.table.cells] == [
        "all_reduce [676] train.py:28 (open)",
        "barrier train.py:14 (open)",
    ]


@pytest.mark.parametrize(("op", "is_open"), [("all_reduce", True), ("broadcast", False)])
def test_what_needs_a_rank_that_has_not_come_has_not_come_back(op: str, is_open: bool) -> None:
    script = recording(ranks=2)
    script.collective("all_reduce", [1], site="train.py:7 metric").step()
    script.collective(
        op, [676], site="train.py:28 train", asynchronous=True, only=0, root=0 if op == "broadcast" else -1
    )
    script.raises(1)
    (first, *_), _ = pictures(fresh_diagnosis_of(script.finished(survivors="killed")))

    assert ["(open)" in row[-1] for row in first.table.cells] == [is_open, False]


def test_no_label_runs_into_the_next_where_a_row_of_ranks_begins_before_it_is_over() -> None:
    one, after = (
        Span(number, "all_reduce", "all_reduce [1]", "train.py:7", since, since + 0.1)
        for number, since in ((1, 0.0), (2, 0.03))
    )

    texts = re.findall(
        r'<text x="([\d.]+)" y="41.0">([^<]*)', str(draw("", ["ranks 0-1"], [{1: one, 2: after}], {"all_reduce": "k0"}))
    )

    (first, words), (second, _) = ((float(x), text) for x, text in texts)
    assert first + LETTER * len(words) <= second


def test_what_cannot_be_printed_is_measured_as_it_is_shown() -> None:
    assert cut("\x1b\x1b\x1b", 8) == "\\x1b\\x1…"
    assert cut_front("layer\u202e.bias", 8) == "…2e.bias"


def of_a_thousand(few: Recording) -> Recording:
    """The recording of four ranks as one of a thousand, of which all others are like rank 0."""
    members = few.ranks[0].text(int(few.ranks[0].groups[0]["members"]))

    def wider(log: RankTrace, rank: int) -> RankTrace:
        texts = tuple("0-999" if text == members else text for text in log.texts)
        return replace(log, rank=rank, world_size=1000, texts=texts)

    ranks = {rank: wider(few.ranks.get(rank, few.ranks[0]), rank) for rank in range(1000)}
    ends = {rank: few.job.ends.get(rank, few.job.ends[0]) for rank in ranks}
    return replace(few, job=replace(few.job, world_size=1000, ends=ends), ranks=ranks)


def test_a_thousand_ranks_fit_into_two_megabytes_and_equal_ranks_are_one_row() -> None:
    script = recording(ranks=4)
    for step in range(24):
        one = script.collective("all_reduce", [1024], site="train.py:41 train_step")
        if step == 20:
            one.skipped_by(3)
        script.collective("barrier", site="train.py:57 save").step()
    diagnosis = fresh_diagnosis_of(of_a_thousand(script.finished(survivors="killed")))

    page = html.render(diagnosis)

    assert len(page.encode()) <= 2 << 20
    marks = sum(page.count(f"<{mark} ") for mark in ("rect", "text", "polyline", "polygon"))
    assert marks < 2_000  # pictures show a bounded number of rows and columns, so they stay SVG at any size of job
    assert "999 identical ranks (ranks 0-2,4-999)" in page
    assert diagnosis.findings[0].ranks == (3,)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.job
def test_a_browser_shows_the_page_without_a_request_or_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html.render(sick("DD301")), "utf-8")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,900", "--dump-dom"]

    done = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=90, check=True
    )

    assert "constant" in done.stdout or "epoch" in done.stdout
    assert done.stdout.count("<svg") > 3
    assert "CONSOLE" not in done.stderr
    assert "Refused to" not in done.stderr


SHOWN = """[...document.querySelectorAll("#{} .pane")].map(pane => getComputedStyle(pane).display != "none")"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.job
def test_the_arrow_keys_change_between_number_and_time_and_go_through_the_steps(tmp_path: Path) -> None:
    for code in ("DD101", "DD202"):
        (tmp_path / f"{code}.html").write_text(html.render(sick(code)), "utf-8")

    with chromium(tmp_path / "profile") as tab:
        tab.show(tmp_path / "DD101.html")
        before = tab.value(f"JSON.stringify({SHOWN.format('collectives')})")
        tab.value('document.querySelector("[name=view-collectives]:checked").focus()')
        tab.press("ArrowRight")
        after = tab.value(f"JSON.stringify({SHOWN.format('collectives')})")
        complaints = list(tab.complaints)
        tab.show(tmp_path / "DD202.html")
        steps = tab.value('document.querySelectorAll("[name=view-divergence]").length')
        tab.value('document.querySelector("[name=view-divergence]:checked").focus()')
        tab.press("ArrowLeft")
        earlier = tab.value(f"JSON.stringify({SHOWN.format('divergence')})")

    assert (before, after) == ("[true,false]", "[false,true]")
    assert (steps, earlier) == (3, "[false,true,false]")
    assert complaints + tab.complaints == []


def test_time_shows_the_wait_of_those_that_have_not_come_back() -> None:
    mine, _ = pictures(sick("DD101"))

    (picture,) = [one for one in mine if one.name == "collectives"]
    by_number, by_time = picture.views
    assert (by_number.label, by_time.label) == ("by number", "by time")
    assert "waited" in str(by_time.svg)
    assert any("since 0." in str(cell) for row in picture.table.cells for cell in row)


def test_every_step_of_the_divergence_is_a_view_and_those_that_differ_are_marked() -> None:
    mine, _ = pictures(sick("DD202"))

    (picture,) = [one for one in mine if one.name == "divergence"]
    assert [(view.label, view.marked) for view in picture.views] == [("start", False), ("1", False), ("2", True)]
    assert picture.first == 2


def test_a_step_that_some_of_the_ranks_were_not_looked_at_in_says_nothing_of_the_layers() -> None:
    diagnosis = sick("DD202")
    assert diagnosis.recording is not None
    seen = diagnosis.recording.ranks[1]
    less = {name: seen.rows(name)[seen.rows(name)["step"] < 2] for name in ("updates", "digests")}
    partial = replace(seen, more={**seen.more, **less})

    mine, others = pictures(
        replace(diagnosis, recording=replace(diagnosis.recording, ranks={**diagnosis.recording.ranks, 1: partial}))
    )

    (picture,) = [one for one in (*mine, *others) if one.name == "divergence"]
    assert {row[0] for row in picture.table.rows} <= {0, 1}


def test_what_nobody_drew_is_counted_by_samples_however_thinly_the_others_are_spread() -> None:
    orders = {rank: list(range(rank, 960, 20)) for rank in range(2)}

    picture = coverage(sampled_job(2, 960).train(orders=orders, sampler="OwnSampler").recording())

    assert picture is not None
    assert picture.table.rows == ((1, "ranks 0-1", 960, 0.1, 0.0, 0.9),)
    assert "90% by nobody" in str(picture.svg)


def test_a_picture_is_drawn_once_for_the_page_and_the_tables_of_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = fresh_diagnosis_of(own("DD101"))
    drawn: list[str] = []
    watched = [lambda recording, name=draw.__name__: drawn.append(name) for draw in gallery.ALL]
    monkeypatch.setattr(gallery, "ALL", watched)
    monkeypatch.setattr(gallery, "BY_AREA", {})

    html.render(diagnosis)

    assert len(drawn) == len(watched)


def test_where_nobody_is_late_the_axis_has_numbers_that_people_read() -> None:
    mine, others = pictures(diagnosis_of("DD504", "healthy"))

    (picture,) = [one for one in (*mine, *others) if one.name == "arrivals"]
    assert "0.05 ms" in str(picture.svg)
    assert "e-0" not in str(picture.svg)


def test_a_bar_of_step_times_is_as_long_as_the_step_that_it_is_labelled_with() -> None:
    """Phases have medians of their own, which need not add up."""
    mine, others = pictures(diagnosis_of("DD504"))

    (picture,) = [one for one in (*mine, *others) if one.name == "step_phases"]
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', str(picture.svg))
    ends = {top: max(float(x) + float(width) for x, y, width in bars if y == top) for _, top, _ in bars}
    steps = [row[1] for row in picture.table.rows]
    longest = max(steps)
    assert sorted(ends.values()) == pytest.approx(sorted(110 + 640 * step / longest for step in steps), abs=1.5)


def test_of_two_ranks_that_part_none_is_set_in_bold() -> None:
    mine, _ = pictures(diagnosis_of("DD108"))

    (picture,) = [one for one in mine if one.name == "collectives"]
    assert not re.findall(r'class="strong"[^>]*>rank', str(picture.svg))


def test_a_legend_explains_only_what_is_drawn() -> None:
    mine, _ = pictures(diagnosis_of("DD202", "healthy"))
    (together,) = [one for one in pictures(diagnosis_of("DD101"))[0] if one.name == "collectives"]

    assert not [one for one in mine if one.name == "collectives"]
    drawn = {"none open": ' open"' in str(together.svg), "none": 'class="none"' in str(together.svg)}
    assert {kind for kind, _ in together.legend if kind in drawn} == {kind for kind, there in drawn.items() if there}


def test_evidence_is_shown_without_the_brackets_of_python() -> None:
    diagnosis = diagnosis_of("DD112")
    finding = replace(
        diagnosis.findings[0],
        evidence={"tipped_by": ["get_rank", "rank"], "calls": {"rank 0": (1, 2)}, "ranks": list(range(999))},
    )

    page = html.render(replace(diagnosis, findings=(finding,)))

    assert '<th scope="row">tipped by</th><td class="long">get_rank, rank</td>' in page
    assert '<td class="long">rank 0: 1, 2</td>' in page
    assert '<td class="long">0-998</td>' in page


def test_findings_that_show_one_line_are_landmarks_of_different_names() -> None:
    diagnosis = sick("DD116")
    found = [replace(diagnosis.findings[0], code=code) for code in ("DD116", "DD123")]

    labels = re.findall(r'role="region" aria-label="([^"]*)"', html.render(replace(diagnosis, findings=tuple(found))))

    assert len([label for label in labels if "source at" in label]) == 2
    assert len(labels) == len({*labels})


def test_ranks_that_drew_the_same_are_one_strip_and_no_name_runs_into_what_is_drawn() -> None:
    orders = {rank: list(range(32)) if rank != 5 else list(range(16, 32)) * 2 for rank in range(64)}
    picture = coverage(sampled_job(64, 32).train(orders=orders, sampler="OwnSampler").recording())

    assert picture is not None
    texts = re.findall(r'<text x="0.0"[^>]*>([^<]*)<', str(picture.svg))
    assert texts[1:] == ["0-4,6-63 (63)", "rank 5", "all ranks"]


def test_a_fix_of_one_line_stands_alone_as_in_the_terminal_and_backticks_are_code() -> None:
    diagnosis = sick("DD103")
    (finding,) = diagnosis.findings
    slug = finding.prescriptions[0].slug
    other = replace(finding, why="`if x < 1 & y:` decides", prescriptions=(Prescription(slug, change="do `this`"),))

    page = html.render(replace(diagnosis, findings=(other,)))

    assert "<strong>Fix:</strong> do <code>this</code>" in page
    assert "<code>if x &lt; 1 &amp; y:</code> decides" in page
    assert diagnosis.remedies[slug].what not in page
    assert diagnosis.remedies[slug].effect not in page


def test_ranks_in_one_call_are_one_box_although_waits_of_several_come_from_it() -> None:
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train_step")
    script.collective("all_reduce", [2], only=0, site="train.py:54 main", asynchronous=True)
    script.collective("all_reduce", [3], only=1, site="train.py:54 main")
    script.collective("all_reduce", [1], site="train.py:55 main")

    mine, others = pictures(fresh_diagnosis_of(script.live()))

    (waits,) = [one for one in (*mine, *others) if one.name == "waits"]
    assert sorted(row[0] for row in waits.table.cells) == ["rank 0", "rank 1"]
