"""The edits of findings are patches that `git apply` takes, of the source that ran; what cannot be checked is no patch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.hang.played import agrees_with_all_at
from distdoctor.diagnosis.source.called_before import called_before
from distdoctor.diagnosis.source.edits import Edit, applied, diff, row_inserted, words_replaced
from distdoctor.diagnosis.source.out_of_condition import out_of_condition
from distdoctor.diagnosis.source.patch import patch_of
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import source_digest
from distdoctor.report.patch import render
from distdoctor.testing import recording

HEAD = "import torch.distributed as dist\n\n\n"


def moved(source: str, line: int, guard: int) -> list[str]:
    """The rows of the diff that takes the statement at a line out of its condition; lines count from 1, after HEAD."""
    skip = HEAD.count("\n")
    edits = out_of_condition({"train.py": HEAD + source}, SourceLine("train.py", line + skip), guard + skip)
    after, _ = applied(HEAD + source, edits)
    return [row for row in diff("train.py", HEAD + source, after).splitlines()[2:] if row[0] in "+-"]


def applies(patch_text: str, folder: Path, files: dict[str, str]) -> dict[str, str]:
    """What `git apply` makes of these files."""
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    subprocess.run(["git", "apply", "--check", "-"], cwd=folder, input=patch_text.encode(), check=True)
    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch_text.encode(), check=True)
    return {name: (folder / name).read_bytes().decode() for name in files}


def sick_recordings() -> list[tuple[str, Recording]]:
    return [(code, sys.modules[one.module].sick()) for code, one in sorted(PLUGINS.checks.items())]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["end", ""])
def test_git_takes_a_patch_whatever_the_lines_end_with(tmp_path: Path, end: str, last: str) -> None:
    text = "\n".join(["# größer", "for epoch in range(3):", "    for batch in loader:", "        pass"]).replace(
        "\n", end
    )
    text += end if last else ""
    sources = {"/job/my train.py": text}

    made = patch_of(row_inserted("/job/my train.py", text, 3, "print(epoch)"), sources)

    assert made is not None
    assert (made.folder, made.digests) == ("/job", (("/job/my train.py", source_digest(text.encode())),))
    after = applies(made.text, tmp_path, {"my train.py": text})
    assert after["my train.py"] == text.replace("    for batch", f"    print(epoch){end}    for batch")


def test_a_line_without_an_end_is_changed_as_git_writes_it(tmp_path: Path) -> None:
    text = "x = 1\ny = x.item()"

    made = patch_of(words_replaced("train.py", text, 2, ".item()", ""), {"train.py": text})

    assert made is not None
    assert made.text.count("\\ No newline at end of file\n") == 2
    assert applies(made.text, tmp_path, {"train.py": text}) == {"train.py": "x = 1\ny = x"}


def test_paths_are_relative_to_where_the_job_was_started() -> None:
    path, text = "/home/me/project/pkg/train.py", "x = 1\n"
    edits = words_replaced(path, text, 1, "1", "2")

    inside, outside = patch_of(edits, {path: text}, cwd="/home/me/project"), patch_of(edits, {path: text}, cwd="/tmp")

    assert inside is not None
    assert outside is not None
    assert (inside.folder, inside.text.splitlines()[0]) == ("/home/me/project", "--- a/pkg/train.py")
    assert (outside.folder, outside.text.splitlines()[0]) == ("/home/me/project/pkg", "--- a/train.py")


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        (words_replaced("t.py", "x = f(1)\n", 1, ")", ""), "no Python"),
        (words_replaced("t.py", "x = f(1)\n", 1, "1", "epoch"), "a name that nobody defines"),
        (words_replaced("t.py", "x = f(1)\n", 1, "1", "1"), "nothing changes"),
        ((Edit("other.py", 1, 0, 1, 0, "pass\n"),), "a file that is not there"),
        ((Edit("t.py", 1, 0, 1, 5, "y"), Edit("t.py", 1, 2, 1, 6, "z")), "they overlap"),
    ],
)
def test_what_cannot_be_trusted_is_no_patch(edits: Sequence[Edit], why: str) -> None:
    assert patch_of(edits, {"t.py": "x = f(1)\n"}) is None, why


def test_a_file_of_which_no_rank_noted_that_it_ran_is_not_patched() -> None:
    text = "x = 1\n"
    edits, ran = words_replaced("t.py", text, 1, "1", "2"), frozenset({source_digest(text.encode())})

    assert patch_of(edits, {"t.py": text}, {"t.py": ran}) is not None
    assert patch_of(edits, {"t.py": text}, {}) is None
    assert patch_of(edits, {"t.py": text}, {"t.py": ran | {"another"}}) is None, "ranks ran different files"


def test_a_statement_alone_replaces_its_condition() -> None:
    assert moved("def f(rank):\n    if rank == 0:\n        dist.barrier()\n", 3, 2) == [
        "-    if rank == 0:",
        "-        dist.barrier()",
        "+    dist.barrier()",
    ]
    assert moved("if rank == 0: dist.barrier()\n", 1, 1) == ["-if rank == 0: dist.barrier()", "+dist.barrier()"]


def test_what_stands_before_and_after_a_statement_keeps_its_condition_and_its_order() -> None:
    source = "def f(rank):\n    if rank == 0:\n        save()\n        dist.barrier()\n        log()\n"

    assert moved(source, 4, 2) == ["-        dist.barrier()", "+    dist.barrier()", "+    if rank == 0:"]
    assert moved(source, 3, 2) == ["+    save()", "-        save()"]
    assert moved(source, 5, 2) == ["-        log()", "+    log()"]


def test_a_statement_of_the_other_branch_follows_both() -> None:
    source = "def f(rank):\n    if rank == 0:\n        save()\n    else:\n        dist.barrier()\n"

    assert moved(source, 5, 4 - 2) == ["-    else:", "-        dist.barrier()", "+    dist.barrier()"]


def test_a_condition_on_more_than_the_rank_keeps_the_rest_where_all_count_it_alike() -> None:
    loop = "for step in steps:\n    if step % 3 == 0 and rank == 0:\n        dist.barrier()\n"

    assert moved(loop, 3, 2) == ["-    if step % 3 == 0 and rank == 0:", "+    if step % 3 == 0:"]
    assert moved(loop.replace("step % 3 == 0", "loss < best"), 3, 2) == []
    assert moved(loop.replace("step % 3 == 0", "(step := step + 1) % 3 == 0"), 3, 2) == []


HELPER = """\
def average(loss):
    dist.all_reduce(loss)
    return loss / 2


def train(rank, loss):
    for step in range(9):
        if rank == 0 and step % 4 == 3:
            print(f"loss {average(loss):.3f}")
"""


def test_a_helper_that_communicates_is_called_by_every_rank_and_its_value_used_by_one() -> None:
    sources = {"t.py": HEAD + HELPER}
    edits = called_before(sources, SourceLine("t.py", 5, "average"), 11)

    after, count = applied(sources["t.py"], edits)

    assert count == 2
    assert [row for row in diff("t.py", sources["t.py"], after).splitlines()[2:] if row[0] in "+-"] == [
        "+        if step % 4 == 3:",
        "+            average_result = average(loss)",
        '-            print(f"loss {average(loss):.3f}")',
        '+            print(f"loss {average_result:.3f}")',
    ]


def test_a_helper_that_is_called_by_itself_is_moved_and_one_that_may_not_be_called_stays() -> None:
    alone = HEAD + HELPER.replace('print(f"loss {average(loss):.3f}")', "average(loss)")
    perhaps = HEAD + HELPER.replace('print(f"loss {average(loss):.3f}")', "print(loss and average(loss))")
    local = HEAD + HELPER.replace("step % 4 == 3", "loss < best")

    made = [called_before({"t.py": text}, SourceLine("t.py", 5, "average"), 11) for text in (alone, perhaps, local)]

    assert [len(edits) for edits in made] == [1, 0, 0]
    assert "        if step % 4 == 3:\n            average(loss)\n" in applied(alone, made[0])[0]


@pytest.mark.parametrize(
    "body",
    [
        "total = count()\n        dist.all_reduce(total)",  # the others have no such tensor
        "if bad:\n            return\n        dist.barrier()",  # nobody knows who gets there
        "save(); dist.barrier()",
        "dist.gather(x, parts, dst=1)",  # rank 1 gives the list, and does not come here
        "dist.gather(x, parts if x else None)",
        "metrics = x.trainer.metrics",  # a property that communicates, of what only this rank may have noted
    ],
)
def test_a_statement_that_others_may_not_run_as_it_stands_stays(body: str) -> None:
    source = f"def f(rank, x, parts):\n    if rank == 0:\n        {body}\n"

    assert moved(source, source.count("\n"), 2) == []


def test_a_gather_is_moved_with_a_list_on_its_destination_alone() -> None:
    source = (
        "def f(rank, x):\n    if rank == 0:\n        parts = [x, x]\n        dist.gather(x, gather_list=parts, dst=0)\n"
        "        print(parts)\n"
    )
    alone = "def f(x, parts):\n    if dist.get_rank() == 0:\n        dist.gather_object(x, parts)\n"

    assert moved(source, 4, 2) == [
        "-        dist.gather(x, gather_list=parts, dst=0)",
        "+    dist.gather(x, gather_list=parts if rank == 0 else None, dst=0)",
        "+    if rank == 0:",
    ]
    assert moved(alone, 3, 2) == [
        "-    if dist.get_rank() == 0:",
        "-        dist.gather_object(x, parts)",
        "+    dist.gather_object(x, parts if dist.get_rank() == 0 else None)",
    ]


def test_a_name_that_only_one_rank_has_keeps_the_call_where_it_is() -> None:
    source = "def f(rank):\n    if rank == 0:\n        box = [1]\n    if rank == 0:\n        dist.broadcast_object_list(box)\n"

    assert moved(source, 5, 4) == []


def test_an_edit_after_which_the_calls_on_record_still_disagree_is_none() -> None:
    def job(then: str) -> Collectives:
        script = recording(ranks=2)
        for _ in range(3):
            script.collective("all_reduce", [1], site="train.py:8 train").step()
        script.collective("all_reduce", [9], only=0, site="train.py:7 train", asynchronous=True)
        script.collective(then, [1], only=0, site="train.py:9 train")
        script.collective("all_reduce", [1], only=1, site="train.py:8 train")
        return Collectives.of(script.live())

    guarded = SourceLine("/job/train.py", 7)
    assert agrees_with_all_at(job(then="all_reduce"), guarded)
    assert not agrees_with_all_at(job(then="broadcast"), guarded)
    assert not agrees_with_all_at(job(then="all_reduce"), SourceLine("/job/train.py", 70)), "no such call"


def test_a_call_that_is_meant_to_meet_one_under_the_opposite_condition_stays() -> None:
    source = (
        "def train(main):\n    for step in range(4):\n        dist.all_reduce(loss)\n"
        "        if not main:\n            dist.barrier()\n"
        "        prepare()\n        if main:\n            dist.broadcast(loss, 0)\n"
    )
    script = recording(ranks=2).source("train.py", HEAD + source)
    for _ in range(3):
        script.collective("all_reduce", [1], site="train.py:6 train").step()
    script.collective("barrier", only=1, site="train.py:8 train")
    script.collective("broadcast", only=0, site="train.py:11 train")

    findings = examine(script.live(), PLUGINS.checks.values()).findings

    assert findings
    assert not [cure.patch for one in findings for cure in one.prescriptions if cure.patch is not None]


def test_a_call_on_a_group_of_some_ranks_is_not_given_to_all() -> None:
    script = recording(ranks=3).group("pair", [0, 1])
    script.collective("all_reduce", [1], site="train.py:8 train").step()
    script.collective("barrier", group="pair", only=0, site="train.py:7 train")

    assert not agrees_with_all_at(Collectives.of(script.live()), SourceLine("/job/train.py", 7))


@pytest.mark.parametrize("goes_round", [False, True])
def test_a_root_that_was_another_one_before_is_not_made_the_same_for_ever(goes_round: bool) -> None:
    """One edit of the line changes every call of it, also those that were right."""
    script = recording(ranks=3).source("train.py", HEAD + "def share(x, rank):\n    dist.broadcast(x, src=rank % 2)\n")
    for step in range(3):
        script.collective("broadcast", [4], root=1 if goes_round and step == 1 else 0, site="train.py:5 share").step()
    script.collective("broadcast", [4], root=0, site="train.py:5 share").instead(1, root=1)

    (finding,) = _findings(script.live(), "DD106")
    patches = [cure.patch.text for cure in finding.prescriptions if cure.patch is not None]

    assert finding.prescriptions[0].change.endswith("for example src=0")
    assert [("src=0)" in text) for text in patches] == ([] if goes_round else [True])


def _findings(made: Recording, code: str) -> list[Finding]:
    return [one for one in examine(made, PLUGINS.checks.values()).findings if one.code == code]


def test_every_patch_of_every_check_applies(tmp_path: Path) -> None:
    checks = PLUGINS.checks
    shown = 0
    for code, made in sick_recordings():
        for finding in examine(made, [checks[code]]).findings:
            for cure in finding.prescriptions:
                if cure.patch is not None:
                    shown += 1
                    folder = tmp_path / f"{code}{shown}"
                    folder.mkdir()
                    files = {Path(path).name: made.sources[path] for path, _ in cure.patch.digests}
                    assert applies(cure.patch.text, folder, files) != files, code
    assert shown >= 3


def test_a_source_that_was_edited_since_gives_words() -> None:
    made = dict(sick_recordings())["DD301"]
    edited = replace(made, sources={path: text + "\n# edited\n" for path, text in made.sources.items()})

    ((was,), (now,)) = (_findings(one, "DD301") for one in (made, edited))

    assert was.prescriptions[0].patch is not None
    assert now.prescriptions[0].patch is None
    assert now.prescriptions[0].change


def test_the_patches_of_a_report_are_one_document_for_git(tmp_path: Path) -> None:
    diagnosis = examine(dict(sick_recordings())["DD301"], PLUGINS.checks.values())
    (finding,) = (one for one in diagnosis.findings if one.code == "DD301")
    patch = finding.prescriptions[0].patch

    assert patch is not None
    assert render(replace(diagnosis, findings=(finding, finding))) == patch.text, "one file is changed once"
    assert render(replace(diagnosis, findings=())) == ""
