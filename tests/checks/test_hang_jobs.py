"""Real hangs are explained with the rank, the line and the cause, while they hang; healthy jobs are left in peace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Said
from jobs import hang as hang_jobs
from jobs.hang import line, watched

from distdoctor import plugins
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Stalls
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job
PLUGINS = plugins.load()
HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """The fork server has imported torch: from now on ranks start in half a second."""
    watched(hang_jobs.nothing, seconds=60)


def diagnosed(recording: Recording) -> Diagnosis:
    return examine(recording, HANGS, PLUGINS.remedies, live=recording.job.running)


def something_is_said(recording: Recording) -> bool:
    return bool(diagnosed(recording).findings)


# what the ranks do, the code, the ranks, the line (found by its end)
CASES = [
    (hang_jobs.skips_a_call, "DD112", (1,), "dist.barrier()  # others wait for the file"),
    (hang_jobs.stops_early, "DD101", (1,), "dist.barrier()  # the end"),
    (hang_jobs.swallows_an_exception, "DD101", (1,), "dist.barrier()  # others wait for the file"),
    (hang_jobs.waits_on_the_way_out, "DD110", (1,), "# an unknown channel"),
    (hang_jobs.saves_alone, "DD112", (0,), "if rank == 0:"),
    (hang_jobs.leaves_early, "DD109", (1,), "dist.all_reduce(total)"),
    (hang_jobs.prints_a_property, "DD112", (0,), "dist.all_gather(parts, self.value)  # in a property"),
    (hang_jobs.collects_garbage, "DD112", (0,), "dist.barrier()  # in __del__"),
    (hang_jobs.logs_in_a_callback, "DD112", (0,), "dist.all_reduce(torch.ones(1))  # in a callback"),
    (hang_jobs.averages_under_join, "DD101", (0,), "dist.all_reduce(total)"),
    (hang_jobs.gathers_shards_alone, "DD125", (0,), "full_state_dict=True))  # of rank 0 alone"),
    (hang_jobs.batch_without_image, "DD128", (1,), "if image is not None:"),
    (hang_jobs.receives_first, "DD114", (0, 1), "dist.recv(x, src=1 - rank)  # both"),
    (hang_jobs.wrong_tag, "DD113", (1, 0), "dist.recv(x, src=0, tag=8)  # never sent"),
    (hang_jobs.makes_a_group_alone, "DD119", (0,), "dist.new_group([0, 1])  # by one of two"),
    (hang_jobs.two_groups, "DD108", (0, 1), "dist.all_reduce(x, group=group)  # in two orders"),
]

SURENESS = {"DD119": "likely", "DD112": "likely", "DD125": "likely", "DD110": "likely"}


@pytest.mark.parametrize(("job", "code", "ranks", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_real_hang_is_explained_while_it_hangs(
    job: Callable[[int], None], code: str, ranks: tuple[int, ...], words: str
) -> None:
    diagnosis = diagnosed(watched(job, until=something_is_said))

    (finding,) = diagnosis.findings
    assert (finding.code, finding.ranks) == (code, ranks), finding
    # Of two ranks nothing but habits and the source tell which is the odd one.
    assert finding.confidence in (
        ("likely", "certain") if code in ("DD101", "DD128") else (SURENESS.get(code, "certain"),)
    )
    assert finding.stalls is Stalls.FOREVER or code in ("DD109", "DD110", "DD113")
    if words and code != "DD112":
        assert finding.place.line == line(words)
    assert finding.prescriptions[0].change


@pytest.mark.parametrize(
    ("job", "title", "decides"),
    [
        (
            hang_jobs.answers_no_failed_task,
            "rank 1 sends one message fewer than rank 0 receives: recv #6 from rank 1",
            "except ValueError:  # a task that failed",
        ),
        (
            hang_jobs.pushes_to_a_server_that_has_ended,
            "rank 0 receives one message fewer than rank 1 sends: send #11 to rank 0",
            "# of pushes",
        ),
    ],
)
def test_of_two_ends_that_count_otherwise_both_are_named_with_what_decides(
    job: Callable[[int], None], title: str, decides: str
) -> None:
    (finding,) = diagnosed(watched(job, until=something_is_said)).findings

    assert (finding.code, finding.ranks, finding.undecided) == ("DD113", (0, 1), True), finding
    assert finding.title.startswith(title)
    assert line(decides) in {place.site.line for place in finding.places}


@pytest.mark.parametrize(
    "job", [hang_jobs.answers_each_task, hang_jobs.pushes_as_often_as_is_served, hang_jobs.leaves_parts_together]
)
def test_ends_that_count_alike_and_errors_that_all_meet_are_left_in_peace(job: Callable[[int], None]) -> None:
    assert diagnosed(watched(job, seconds=60)).findings == ()


def test_the_condition_on_the_rank_is_the_place_and_the_fix_a_diff() -> None:
    (finding,) = diagnosed(watched(hang_jobs.saves_alone, until=something_is_said)).findings

    assert finding.place.line == line("dist.barrier()  # of rank 0 alone") - 1
    patch = finding.prescriptions[0].patch
    assert patch is not None
    assert [row for row in patch.text.splitlines()[2:] if row[0] in "+-"] == [
        "-        if rank == 0:",
        "-            dist.barrier()  # of rank 0 alone",
        "+        dist.barrier()  # of rank 0 alone",
    ]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (hang_jobs.samples_alone, "_sample()  # by rank 0 alone"),
        (hang_jobs.samples_when_it_is_good, "_sample()  # where it is good"),
    ],
)
def test_calls_of_one_line_that_a_rank_came_to_from_elsewhere_are_where_it_left_the_others(
    job: Callable[[int], None], words: str
) -> None:
    (finding,) = diagnosed(watched(job, until=something_is_said)).findings

    assert (finding.code, finding.ranks, finding.place.line) == ("DD112", (0,), line(words) - 1)


@pytest.mark.parametrize(
    ("job", "condition"),
    [(hang_jobs.skips_a_bad_batch, "if not torch.isfinite(loss):"), (hang_jobs.stops_early, "if loss > 5:")],
)
def test_the_condition_by_which_a_rank_skipped_a_turn_or_left_the_loop_is_shown(
    job: Callable[[int], None], condition: str
) -> None:
    (finding,) = diagnosed(watched(job, until=something_is_said)).findings

    assert (finding.code, finding.ranks) == ("DD101", (1,))
    assert f"`{condition}` (hang.py:{line(condition)}) lets a rank" in finding.why
    assert condition in finding.prescriptions[0].change


def test_sizes_that_differ_are_told_although_nobody_waits_for_the_handles() -> None:
    finding = diagnosed(watched(hang_jobs.other_shape, until=something_is_said)).findings[0]

    assert finding.code == "DD103"
    assert 1 in finding.ranks
    assert finding.evidence["shape"] == {"[10]": [0], "[11]": [1]}


def test_handles_that_nobody_waits_for_are_reported_after_a_job_that_ended_in_order() -> None:
    (finding,) = diagnosed(watched(hang_jobs.drops_handles, seconds=60)).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD120", (0, 1), "likely")
    assert finding.place.line == line("dist.all_reduce(loss, async_op=True)  # nobody waits")
    assert finding.evidence["dropped"] == {0: 3, 1: 3}


def test_a_buffer_that_is_written_to_while_it_is_sent_is_told_and_slots_of_one_buffer_are_not() -> None:
    (finding,) = diagnosed(watched(hang_jobs.overwrites_what_it_sends, seconds=60)).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD120", (0,), "likely")
    assert finding.place.line == line("sent = dist.isend(buffer, dst=1)  # still read")
    assert finding.evidence["changed"] == {0: 4}
    assert not diagnosed(watched(hang_jobs.sends_from_slices, seconds=60)).findings


def test_messages_that_nobody_received_are_told_of_a_job_that_ended_in_order() -> None:
    (finding,) = diagnosed(watched(hang_jobs.sends_too_often, seconds=60)).findings

    assert (finding.code, finding.ranks, finding.evidence["lost"]) == ("DD113", (0, 1), 2)
    assert finding.place.line == line("dist.isend(torch.ones(4), dst=1))  # one per round")


BY_NAME = """\
import torch
import torch.distributed as dist

NAMES = {"loss", "accuracy", "precision", "recall", "f1", "auroc", "mae", "rmse", "bleu", "chrf", "wer", "cer"}
sums = {name: torch.ones(1) for name in NAMES}
dist.init_process_group("gloo")
for name in NAMES:
    dist.all_reduce(sums[name])
for name in sorted(NAMES):
    dist.all_reduce(sums[name])
dist.destroy_process_group()
"""


def test_sums_in_the_order_of_a_set_are_told_of_processes_that_each_hash_with_a_seed_of_their_own(
    tmp_path: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text(BY_NAME)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    say("run", "--nproc", 2, "-o", "report.json", "job.py")
    (finding,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert (finding["code"], finding["ranks"], finding["place"]["line"]) == ("DD107", [0, 1], 8)
    assert "+for name in sorted(NAMES):" in finding["remedies"][0]["patch"]


IN_ANY_ORDER = """\
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
pairs = [(0, 1), (1, 2), (0, 2)]
names = pairs if dist.get_rank() != 1 else pairs[::-1]
for members in names:
    dist.new_group(list(members), timeout=timedelta(seconds=12))
"""


def test_groups_in_another_order_stay_told_when_their_timeouts_end_the_job(
    tmp_path: Path, say: Callable[..., Said]
) -> None:
    (tmp_path / "job.py").write_text(IN_ANY_ORDER)
    done = say("run", "--on-hang", "report", "--nproc", 3, "-o", "report.json", "job.py")
    (finding,) = json.loads((tmp_path / "report.json").read_text())["findings"]

    assert (finding["code"], finding["place"]["line"]) == ("DD119", 9)
    assert 1 in finding["ranks"]
    assert "went on" not in done.err


LINKS_OF_A_RING = """\
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
links = {links}
for link in links:
    if dist.get_rank() in link:
        dist.new_group(list(link), timeout=timedelta(seconds=12), use_local_synchronization=True)
"""


@pytest.mark.parametrize("counts_alike", [False, True])
def test_members_who_count_their_own_groups_differently_stay_told_when_they_give_up(
    tmp_path: Path, say: Callable[..., Said], counts_alike: bool
) -> None:
    links = "[(0, 1), (2,), (0, 2), (1,), (1, 2)]" if counts_alike else "[(0, 1), (0, 2), (1, 2)]"
    (tmp_path / "job.py").write_text(LINKS_OF_A_RING.format(links=links))
    say("run", "--on-hang", "report", "--nproc", 3, "-o", "report.json", "job.py")
    told = [
        (one["code"], one["ranks"], one["place"]["line"])
        for one in json.loads((tmp_path / "report.json").read_text())["findings"]
        if one["severity"] == "error"
    ]

    assert told == ([] if counts_alike else [("DD119", [0, 2], 9)])


def test_a_sharded_module_that_runs_on_every_rank_is_left_in_peace() -> None:
    assert not diagnosed(watched(hang_jobs.batch_with_dummy_image, seconds=60)).findings


def test_ranks_that_were_all_aborted_in_one_exchange_lost_nobody() -> None:
    """gloo aborts whoever is sent more than it expects: the rank that had no rows left out an exchange of the backward pass."""
    (finding,) = diagnosed(watched(hang_jobs.leaves_out_an_exchange, ranks=3, seconds=60)).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD128", (2,), "likely")
    assert finding.place.line == line("receive, send)  # of rows")


def test_an_expert_without_rows_that_stays_in_the_graph_is_left_in_peace() -> None:
    assert not diagnosed(watched(hang_jobs.exchanges_with_an_empty_expert, ranks=3, seconds=60)).findings


def test_a_healthy_job_that_looks_sick_is_left_in_peace() -> None:
    recording = watched(hang_jobs.healthy, seconds=60)

    assert diagnosed(recording).findings == ()
    assert not recording.job.running
    assert all(len(log.calls) > 40 for log in recording.ranks.values())


def test_sums_that_are_swapped_through_one_line_of_a_helper_are_told_apart_by_who_called_it() -> None:
    (finding,) = diagnosed(watched(hang_jobs.swaps_through_a_helper, seconds=60)).findings

    assert (finding.code, finding.ranks, finding.evidence["hangs"]) == ("DD107", (1,), False)
    assert finding.place.line == line("total(hits)  # first")
    assert "calls `total(hits)`" in finding.title
