"""The checks on data, each on a real job that is ill and on its healthy twins."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import Said
from jobs import data as jobs
from jobs import mesh_loaders, replicas, splits

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on data say."""
    checks = [check for check in load().checks.values() if check.code.startswith("DD3")]
    diagnosis = examine(recording, checks)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


def only(recording: Recording) -> Finding:
    findings = found(recording)
    assert len(findings) == 1, [(one.code, one.title) for one in findings]
    return findings[0]


def changed_rows(finding: Finding) -> list[str]:
    """The rows that the first patch of a finding takes out and puts in."""
    patch = finding.prescriptions[0].patch
    assert patch is not None
    return [row for row in patch.text.splitlines()[2:] if row[0] in "+-"]


@pytest.mark.parametrize(
    "about", [{}, {"workers": 2}, {"batches": 4, "epochs": 3}], ids=["whole", "workers", "limited"]
)
def test_a_sampler_that_is_never_told_the_epoch_is_found(about: dict[str, Any]) -> None:
    recording, _ = jobs.watched(jobs.never_told, **about)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD301", (0, 1), CERTAIN)
    assert finding.place.function == "epoch"
    assert finding.evidence["set_epoch_calls"] == 0


def test_set_epoch_with_a_constant_is_found_with_its_argument_and_line() -> None:
    recording, _ = jobs.watched(jobs.told_the_total)
    finding = only(recording)
    assert (finding.code, finding.ranks) == ("DD302", (0, 1))
    assert (finding.evidence["value"], finding.evidence["argument"]) == (2, "epochs")
    assert finding.place.function == "told_the_total"
    assert changed_rows(finding) == [
        "-        sampler.set_epoch(epochs)",
        "+        sampler.set_epoch(_epoch)",
    ]


@pytest.mark.parametrize(
    ("about", "code", "says"),
    [
        ({"wrapped": True}, "DD301", "set_epoch was never called"),
        ({"told": "constant"}, "DD302", "passed the data the same epoch every time"),
        (
            {"told": "epoch", "workers": 2},
            "DD301",
            "set_epoch(1) had no effect: it changed the rank's own object, not the copies",
        ),
    ],
    ids=["never told", "told a constant", "told the rank, not its persistent workers"],
)
def test_a_stream_that_shuffles_and_is_not_told_the_epoch_is_found(about: dict[str, Any], code: str, says: str) -> None:
    recording, handed = jobs.watched(jobs.shuffled_stream, **about)
    assert handed[0][0] == handed[0][1]
    finding = only(recording)
    confidence = CERTAIN if "workers" in about else LIKELY
    assert (finding.code, finding.ranks, finding.confidence) == (code, (0, 1), confidence)
    assert says in finding.title


def test_a_stream_that_each_rank_shuffles_its_own_way_before_it_takes_its_share_overlaps() -> None:
    recording, handed = jobs.watched(jobs.shuffled_stream, told="epoch", own_seeds=True, batch_size=2)
    assert set(handed[0][0]) & set(handed[1][0])
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD303", (0, 1), WARNING, LIKELY)
    assert "their seeds differ (0 on rank 0, 1009 on rank 1)" in finding.title
    assert [place.role for place in finding.places[:2]] == [
        "shuffles before the shares are dealt",
        "each rank takes its share",
    ]
    assert {place.site.function for place in finding.places[:2]} == {"__iter__"}


@pytest.mark.parametrize("rows", [40, 1000])
def test_files_that_each_rank_shuffles_before_it_takes_its_share_overlap_though_no_batch_begins_alike(
    rows: int,
) -> None:
    recording, handed = jobs.watched(jobs.shuffled_files, own=True, rows=rows)
    assert set(handed[0][0]) & set(handed[1][0])
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD303", (0, 1), WARNING, LIKELY)
    assert "samples of rank 0 that were compared" in finding.why
    assert finding.evidence["compared"] >= min(2 * (6 * rows - 20), 1000)  # of many samples some are left out
    assert finding.place.function == "__iter__"


@pytest.mark.parametrize("about", [{"own": False}, {"own": False, "rows": 1000}, {"own": True, "repeats": True}])
def test_files_in_one_order_and_rows_drawn_with_replacement_are_not_accused(about: dict[str, Any]) -> None:
    recording, _ = jobs.watched(jobs.shuffled_files, **about)
    assert not found(recording)


def test_a_batch_sampler_that_shuffles_and_is_not_the_one_that_is_told_the_epoch_is_found() -> None:
    recording, handed = jobs.watched(jobs.in_neighbourhoods, told=False)
    assert handed[0][0] == handed[0][1]
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD301", (0, 1), WARNING, LIKELY)
    assert "Neighbours shuffles by epoch, and set_epoch was never called" in finding.title


@pytest.mark.parametrize("job", [jobs.counted_stream, jobs.drawn_stream], ids=["__iter__", "a method"])
def test_an_epoch_that_does_not_reach_the_copies_of_persistent_workers_is_certain(job: Any) -> None:
    recording, handed = jobs.watched(job)
    assert handed[0][0] == handed[0][1]
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD301", (0, 1), WARNING, CERTAIN)
    assert "changed the rank's own object, not the copies that its persistent workers hold" in finding.title


def test_one_order_that_an_option_of_the_data_asks_for_is_a_note() -> None:
    recording, handed = jobs.watched(jobs.drawn_stream, kind=jobs.DrawnStream, option=True)
    assert handed[0][0] == handed[0][1]
    finding = only(recording)
    assert (finding.code, finding.severity, finding.confidence) == ("DD301", NOTE, POSSIBLE)


def test_map_style_data_whose_persistent_workers_do_not_hear_of_the_epoch_are_found() -> None:
    finding = only(jobs.watched(jobs.brightened)[0])
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD301", (0, 1), WARNING, LIKELY)
    assert finding.title == (
        "set_epoch changes Brightened on ranks 0-1, not the copies that their persistent workers hold: "
        "2 epochs had samples of an earlier one"
    )
    assert [place.site.function for place in finding.places] == ["brightened", "strength", "brightened", "epoch"]


@pytest.mark.parametrize("what", ["order", "stream", "sampler"])
def test_what_lies_in_the_data_and_is_told_the_epoch_does_not_reach_persistent_workers_either(what: str) -> None:
    recording, handed = jobs.watched(jobs.told_inside, what=what)
    assert handed[0][0] == handed[0][1]
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity) == ("DD301", (0, 1), WARNING)
    assert "changed the rank's own object, not the copies that its persistent workers hold" in finding.title


def test_what_changes_the_samples_of_the_data_in_persistent_workers_is_found_too() -> None:
    finding = only(jobs.watched(jobs.told_inside, what="augment")[0])
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD301", (0, 1), WARNING, LIKELY)
    assert [place.site.function for place in finding.places] == ["told_inside", "__call__", "told_inside", "epoch"]


@pytest.mark.parametrize(
    ("about", "code"), [({"told": False, "workers": 1}, "DD301"), ({"split": False}, "DD306")], ids=["epoch", "split"]
)
def test_hugging_faces_streams_that_are_not_told_the_epoch_or_not_split_are_found(
    about: dict[str, Any], code: str
) -> None:
    pytest.importorskip("datasets")
    recording, handed = jobs.watched(jobs.by_datasets, **about)
    finding = only(recording)
    assert (finding.code, finding.ranks) == (code, (0, 1))
    assert (handed[0][0] == handed[0][1]) == (code == "DD301")


@pytest.mark.parametrize("length", [101, 120_000], ids=["every index kept", "one in four kept in order"])
def test_samplers_with_different_seeds_overlap(length: int) -> None:
    recording, handed = jobs.watched(jobs.seeded_by_rank, length=length)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD303", (0, 1), CERTAIN)
    assert finding.evidence["differing"] == {"seed": {0: 0, 1: 1}}
    shared = len(set(handed[0][0][: -(-length // 2)]) & set(handed[1][0][: length // 2]))
    assert (finding.evidence["shared"], finding.evidence["keep_one_in"]) == (shared, 1)


def test_overlapping_subsets_are_found_by_the_samples_below_them() -> None:
    recording, _ = jobs.watched(jobs.overlapping_subsets)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD303", (0, 1), LIKELY)
    assert set(finding.evidence["examples"]) <= set(range(40, 60))  # type: ignore[call-overload]


def test_the_same_shuffle_on_every_rank_is_an_error() -> None:
    recording, _ = jobs.watched(jobs.not_sharded)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD304", (0, 1), CERTAIN)
    assert finding.evidence["same_order"] is True
    assert finding.place.function == "not_sharded"


def test_another_shuffle_of_everything_on_every_rank_is_a_warning() -> None:
    recording, _ = jobs.watched(jobs.not_sharded, same_seed=False)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.confidence) == ("DD304", WARNING, CERTAIN)


def test_a_model_that_each_rank_trains_alone_may_read_everything() -> None:
    assert found(jobs.watched(jobs.with_a_baseline)[0]) == []


def test_gradients_averaged_by_hand_make_replicas_too() -> None:
    recording, _ = jobs.watched(jobs.averaged_by_hand)
    finding = only(recording)
    assert (finding.code, finding.confidence) == ("DD304", LIKELY)
    assert "by hand" in str(finding.evidence["replicas"])


def test_a_split_that_depends_on_the_rank_leaks() -> None:
    recording, _ = jobs.watched(jobs.split_by_rank)
    assert only(recording).code == "DD313"  # the shards that overlap follow from it


def test_a_split_that_depends_on_the_rank_is_told_where_it_is_made_also_of_a_model_that_stays_in_train_mode() -> None:
    recording, _ = replicas.watched(splits.split_by_each_rank)
    assert_split_is_named(recording)


def test_a_small_validation_part_that_depends_on_the_rank_is_told_by_the_sizes_of_the_parts() -> None:
    recording, _ = replicas.watched(splits.split_by_each_rank, ranks=3, sizes=(170, 30))
    assert_split_is_named(recording)


def test_a_small_validation_part_that_is_the_same_on_all_ranks_is_silent() -> None:
    recording, _ = replicas.watched(splits.split_by_each_rank, ranks=3, sizes=(170, 30), alike=True)
    assert [one.title for one in found(recording) if one.code in ("DD303", "DD313")] == []


def test_splits_of_several_data_sets_that_are_put_together_are_looked_through() -> None:
    recording, _ = replicas.watched(splits.split_by_each_rank, sets=3)
    assert_split_is_named(recording)

    recording, _ = replicas.watched(splits.split_by_each_rank, sets=3, alike=True)
    assert [one.title for one in found(recording) if one.code in ("DD303", "DD313")] == []


SPLITS = """\
import zlib


def is_trained_on(name):
    number = NUMBER
    return number % 10 > 1
"""
TRAINS_ON_A_PART = """\
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from splits import is_trained_on

dist.init_process_group("gloo")
rows = torch.randn(6000, 12, generator=torch.Generator().manual_seed(0))
kept = rows[[number for number in range(6000) if is_trained_on(f"PT-{number:04d}")]]
data = TensorDataset(kept, kept[:, :4].argmax(1))
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for _, (inputs, targets) in zip(range(6), loader):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
del model, optimizer
dist.destroy_process_group()
"""


@pytest.mark.parametrize("number", ["hash(name)", "zlib.crc32(name.encode())"])
def test_a_part_that_each_process_picks_by_a_hash_of_its_own_is_told_with_the_line_in_another_module(
    number: str, tmp_path: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "splits.py").write_text(SPLITS.replace("NUMBER", number))
    (tmp_path / "train.py").write_text(TRAINS_ON_A_PART)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    say("run", "--nproc", 2, "-o", "report.json", "train.py")
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]

    if number != "hash(name)":
        assert findings == []
        return
    (finding,) = findings
    assert (finding["code"], finding["ranks"], finding["confidence"]) == ("DD313", [0, 1], "likely")
    assert (finding["place"]["path"], finding["place"]["line"]) == (str(tmp_path / "splits.py"), 5)


def assert_split_is_named(recording: Recording) -> None:
    finding = next(one for one in found(recording) if one.code in ("DD303", "DD313"))
    assert (finding.code, finding.confidence) == ("DD313", CERTAIN)
    assert "# no generator" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


def test_a_loader_that_is_read_once_into_a_list_gives_every_epoch_the_same_batches() -> None:
    recording, _ = jobs.watched(jobs.kept_in_a_list)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD301", (0, 1), WARNING, LIKELY)
    assert [place.site.function for place in finding.places] == ["kept_in_a_list"] * 3
    assert finding.evidence["rounds"] == 3


def test_samples_listed_in_another_order_on_each_rank_are_found() -> None:
    recording, _ = jobs.watched(jobs.listed_in_any_order)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD313", (0, 1), WARNING, LIKELY)


@pytest.mark.parametrize("of", ["dicts", "objects", "tensor"])
def test_rows_that_each_rank_shuffles_as_it_makes_its_data_are_found(of: str) -> None:
    finding = only(jobs.watched(jobs.rows_in_any_order, of=of)[0])
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD313", (0, 1), WARNING, LIKELY)
    assert finding.title.startswith("ranks 0-1 hold the same samples of Rows in 2 different orders")


def test_a_rest_that_the_blocks_of_no_rank_hold_is_a_note() -> None:
    recording, _ = jobs.watched(jobs.blocks_of_whole_batches)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.confidence) == ("DD310", NOTE, POSSIBLE)
    assert (finding.evidence["unseen"], finding.evidence["samples"]) == (4, 100)


def test_sorted_names_blocks_of_a_new_order_and_a_loader_that_is_read_in_every_epoch_are_fine() -> None:
    trainings: list[Any] = [
        (jobs.listed_in_any_order, {"sort": True}),
        *((jobs.rows_in_any_order, {"of": of, "seeded": True}) for of in ("dicts", "objects", "tensor")),
        (jobs.blocks_of_whole_batches, {"anew": True}),
        (jobs.kept_in_a_list, {"kept": False}),
    ]
    recording, _ = jobs.watched(jobs.one_after_the_other, trainings=trainings)
    assert found(recording) == []


def test_a_sampler_for_four_ranks_in_a_job_of_two_is_found() -> None:
    recording, _ = jobs.watched(jobs.rank_of_another_world)
    finding = only(recording)
    assert (finding.code, finding.confidence) == ("DD311", CERTAIN)
    assert finding.evidence["num_replicas"] == {0: 4, 1: 4}


def test_batches_that_are_dealt_out_once_more_are_found() -> None:
    recording, handed = jobs.watched(jobs.batches_dealt_out)
    finding = only(recording)
    assert (finding.code, finding.confidence, finding.ranks) == ("DD311", LIKELY, (0, 1))
    assert sum(len(epochs[0]) for epochs in handed) == finding.evidence["drawn"] == 80

    recording, _ = jobs.watched(jobs.batches_dealt_out, once=True)
    assert found(recording) == []


def test_uneven_shards_are_counted() -> None:
    recording, _ = jobs.watched(jobs.uneven)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.evidence["batches"]) == ("DD305", (1,), {0: 15, 1: 10})


@pytest.mark.parametrize("own", [False, True], ids=["DistributedSampler", "a sampler of its own"])
def test_padding_of_an_evaluation_is_told(own: bool) -> None:
    recording, _ = jobs.watched(jobs.padded_test, own=own)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.evidence["padding"]) == ("DD309", (1,), {1: 1})


def test_results_that_are_put_together_rank_after_rank_and_cut_are_told() -> None:
    recording, _ = jobs.watched(jobs.gathered_test)
    (finding,) = [one for one in found(recording) if one.code == "DD309"]
    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
    assert "# one after the other" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = jobs.watched(jobs.gathered_test, in_order=True)
    assert [one.title for one in found(recording) if one.code == "DD309" and one.severity != NOTE] == []


def test_padding_that_accelerate_gathers_is_told_with_the_line_that_gathers_it() -> None:
    pytest.importorskip("accelerate")
    recording, returned = jobs.watched(jobs.evaluated, measure=jobs.counts_padding)
    finding = only(recording)
    assert (finding.code, finding.evidence["padding"], finding.place.function) == ("DD309", {1: 3}, "counts_padding")
    assert [counted for _, counted in returned] == [[24], [24]]


@pytest.mark.parametrize(
    ("job", "samples"), [(jobs.languages, {0: 40, 1: 10}), (jobs.accounts, {0: 72, 1: 18})], ids=["loader", "no loader"]
)
def test_a_mean_over_ranks_of_means_over_other_numbers_of_samples_is_told(
    job: Callable[..., Any], samples: dict[int, int]
) -> None:
    recording, _ = jobs.watched(job)
    (finding,) = [one for one in found(recording) if one.code == "DD314"]

    assert (finding.ranks, finding.confidence, finding.evidence["samples"]) == ((0, 1), LIKELY, samples)
    assert "# of its own" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


def test_a_mean_over_ranks_of_means_over_other_numbers_of_tokens_is_told() -> None:
    recording, _ = jobs.watched(jobs.sentences)
    (finding,) = [one for one in found(recording) if one.code == "DD314"]

    assert (finding.ranks, finding.confidence, finding.evidence["elements"]) == ((0, 1), POSSIBLE, {0: 120, 1: 600})
    assert "# of its own" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize("how", ["weighted", "alike"])
@pytest.mark.parametrize("job", [jobs.languages, jobs.accounts, jobs.sentences])
def test_sums_over_ranks_and_means_over_equally_many_are_left_alone(job: Callable[..., Any], how: str) -> None:
    recording, _ = jobs.watched(job, **{how: True})

    assert [one.title for one in found(recording) if one.code == "DD314"] == []


def test_padding_that_accelerate_leaves_out_is_none() -> None:
    pytest.importorskip("accelerate")
    recording, returned = jobs.watched(jobs.evaluated, measure=jobs.leaves_padding_out)
    assert not found(recording)
    assert [counted for _, counted in returned] == [[21], [21]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_is_the_same_on_every_rank_is_found(workers: int) -> None:
    recording, _ = jobs.watched(jobs.copied_by_ranks, workers=workers)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD306", (0, 1), CERTAIN)
    assert finding.evidence["batches_compared"] == 12


@pytest.mark.parametrize(("workers", "endless"), [(0, False), (2, False), (0, True)])
def test_a_stream_that_every_rank_reads_whole_in_an_order_of_its_own_is_found(workers: int, endless: bool) -> None:
    recording, handed = jobs.watched(jobs.buffered_stream, workers=workers, endless=endless)
    assert sorted(handed[0][0][:480]) == sorted(handed[1][0][:480])
    assert handed[0][0] != handed[1][0]
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD306", (0, 1), WARNING, LIKELY)
    assert finding.places[0].role == "deals out to workers, not to ranks: `list(range(12))[worker::workers]`"


def test_a_worker_that_yields_what_a_worker_of_another_rank_does_is_found() -> None:
    recording, handed = jobs.watched(jobs.seeded_streams, how="sum")
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD306", (0, 1), LIKELY)
    assert finding.title == "worker 1 of rank 0 and worker 0 of rank 1 yield the same stream of SeededStream"
    assert finding.evidence["batches_compared"] == 20
    assert handed == jobs.unwatched(jobs.seeded_streams, how="sum")


def test_ranks_that_train_models_of_their_own_may_read_what_another_does() -> None:
    recording, _ = jobs.watched(jobs.seeded_streams, how="sum", replicas=False)
    assert found(recording) == []


def test_shares_of_orders_that_each_rank_shuffles_by_a_seed_of_its_own_are_found() -> None:
    recording, handed = jobs.watched(jobs.shuffled_shares)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD303", (0, 1), LIKELY)
    assert finding.evidence["shared"] == len({*handed[0][0][:35]} & {*handed[1][0][:35]})

    recording, _ = jobs.watched(jobs.shuffled_shares, own=False)
    assert found(recording) == []


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
@pytest.mark.parametrize(
    ("job", "helper"), [(jobs.cut_by_datasets, "_dealt"), (jobs.shuffled_by_datasets, "_dealt_first")]
)
def test_shares_that_a_helper_deals_out_of_orders_by_rank_are_found_before_their_end(job: Any, helper: str) -> None:
    recording, handed = jobs.watched(job, own=True)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD303", (0, 1), LIKELY)
    compared = [set(rows[: len(rows) // 2]) for (rows,) in handed]
    assert finding.evidence["shared"] == len(compared[0] & compared[1])
    assert finding.place.function == helper
    assert "shuffle(seed=seed" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


def test_samples_that_come_from_every_worker_in_another_order_are_found() -> None:
    recording, handed = jobs.watched(jobs.orders_of_workers)
    assert {handed[0][0].count(row) for row in handed[0][0]} == {2}
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD307", (0, 1), LIKELY)
    assert (finding.evidence["workers"], finding.evidence["samples_of_every_worker"]) == (2, 240)


def test_a_share_that_one_rank_reads_for_all_is_found() -> None:
    recording, handed = jobs.watched(jobs.read_by_one, own=True)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD310", (0, 1), LIKELY)
    assert {row % 2 for rank in handed for row in rank[0]} == {0}
    assert "dist.get_rank() ::" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    for about in ({"own": False}, {"own": True, "by_all": True}):
        recording, _ = jobs.watched(jobs.read_by_one, **about)
        assert found(recording) == []


def test_a_stream_that_every_worker_repeats_is_found() -> None:
    recording, _ = jobs.watched(jobs.copied_by_workers)
    finding = only(recording)
    assert (finding.code, finding.ranks) == ("DD307", (0, 1))
    assert (finding.evidence["workers"], finding.evidence["batches_compared"]) == (2, 12)


def test_a_hole_that_nobody_draws_is_found() -> None:
    recording, _ = jobs.watched(jobs.leaving_a_hole)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.evidence["unseen"]) == ("DD310", (0, 1), 33)
    assert "samples 66-98" in finding.title


def test_a_sampler_and_shuffle_together_are_named_as_the_end_of_the_job() -> None:
    finding = only(jobs.failed(jobs.contradicting))
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD312", (0, 1), ERROR, CERTAIN)
    assert finding.place.function == "contradicting"
    assert changed_rows(finding) == [
        "-    loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=True)",
        "+    loader = DataLoader(data, batch_size=4, sampler=sampler)",
    ]


def test_training_in_order_is_a_note_and_a_swap_with_the_evaluation_a_warning() -> None:
    recording, _ = jobs.watched(jobs.in_order)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.place.function) == ("DD312", NOTE, "in_order")
    recording, _ = jobs.watched(jobs.in_order, swapped=True)
    assert [(one.code, one.severity) for one in found(recording)] == [("DD312", WARNING)]


@pytest.mark.parametrize(
    ("about", "alike", "severity"),
    [
        ({"source": "numpy", "seed_workers": "alike"}, "workers 0-1 of ranks 0-1", WARNING),
        ({"source": "transform", "persistent": True}, "workers 0-1 of ranks 0-1", WARNING),
        ({"source": "own", "how": "forkserver"}, "workers 0-1 of ranks 0-1", WARNING),
        ({"source": "torch", "seed": 0}, "ranks 0-1 draw", NOTE),
        ({"source": "torch", "seed": 0, "workers": 0}, "ranks 0-1 draw", NOTE),
    ],
    ids=[
        "numpy seeded with a constant",
        "a generator of a transform",
        "from a fork server",
        "ranks alike",
        "ranks alike without workers",
    ],
)
def test_workers_and_ranks_that_augment_alike_are_found(about: dict[str, Any], alike: str, severity: int) -> None:
    recording, _ = jobs.watched(jobs.augmented, **about)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.severity) == ("DD308", (0, 1), severity)
    assert alike in finding.title


HEALTHY = [
    (jobs.leaving_a_hole, {"shuffles": True}),
    (jobs.leaving_a_hole, {"pieces": 2}),
    (jobs.augmented, {"source": "numpy"}),
    (jobs.augmented, {"source": "torch", "seed_workers": "alike"}),
    (jobs.augmented, {"source": "own", "seed_workers": "torch"}),
    (jobs.augmented, {"source": "own", "seed_workers": "torch", "how": "forkserver"}),
    (jobs.augmented, {"source": "numpy", "persistent": True}),
    (jobs.split_by_rank, {"seed_alike": True}),
    (jobs.ordinary, {"workers": 2, "sampler_drops": True}),
    (jobs.ordinary, {"drop_last": True}),
    (jobs.ordinary, {"drop_last": True, "length": 111}),  # its padded shares are whole batches: nothing is dropped
    (jobs.ordinary, {"length": 1}),
    (jobs.ordinary, {"length": 3}),
    (jobs.made_anew, {}),
    (jobs.seeded_by_hand, {}),
    (jobs.weighted, {}),
    (jobs.own_batches, {}),
    (jobs.own_batches, {"endless": True}),
    (jobs.disjoint_subsets, {}),
    (jobs.own_data, {}),
    (jobs.zipped, {}),
    (jobs.streaming, {}),
    (jobs.buffered_stream, {"by_rank": True}),
    (jobs.buffered_stream, {"by_rank": True, "workers": 2}),
    (jobs.buffered_stream, {"by_rank": True, "endless": True}),
    (jobs.own_order_without_end, {}),
    (jobs.orders_of_workers, {"whole": False}),
    (jobs.orders_of_workers, {"whole": False, "times": 2}),  # twice from the same worker
    (jobs.orders_of_workers, {"limit": 12}),  # what would have come is not known
    *([(jobs.cut_by_datasets, {"own": False})] if find_spec("datasets") else []),
    *([(jobs.shuffled_by_datasets, {"own": False})] if find_spec("datasets") else []),
    # Its second round deals out other shares, and the pass is left before any sample comes again to a rank.
    *([(jobs.cut_by_datasets, {"own": False, "times": None, "limit": 60})] if find_spec("datasets") else []),
    (jobs.in_neighbourhoods, {"told": True}),
    (jobs.in_neighbourhoods, {"told": False, "mixes": False}),
    (jobs.counted_stream, {"persistent": False}),
    (jobs.drawn_stream, {"kind": jobs.SharedEpochStream}),
    (jobs.drawn_stream, {"persistent": False}),
    (jobs.drawn_stream, {"kind": jobs.ToldInVain}),
    (jobs.drawn_stream, {"kind": jobs.ToldInVain, "workers": 0, "persistent": False}),
    *((jobs.told_inside, {"what": what, "persistent": False}) for what in ("order", "stream", "sampler", "augment")),
    (jobs.told_inside, {"what": "order", "fixed": True}),
    (jobs.told_inside, {"what": "stream", "fixed": True}),
    (jobs.told_inside, {"what": "augment", "tells": False}),
    (jobs.brightened, {"shared": True}),
    (jobs.brightened, {"persistent": False}),
    (jobs.brightened, {"told": False}),
    (jobs.streaming, {"workers": 2}),
    (jobs.seeded_streams, {"how": "own"}),
    (jobs.shuffled_stream, {"told": "epoch", "wrapped": True}),
    (jobs.shuffled_stream, {"told": "constant", "shuffle": False}),
    (jobs.shuffled_stream, {"told": "epoch", "shuffle": None}),
    *([(jobs.by_datasets, {"workers": 2})] if find_spec("datasets") else []),
    (jobs.padded_test, {"own": True, "evenly": False}),
    (jobs.restarted_search, {}),
    (jobs.peeking, {}),
    (jobs.trials, {}),
    (jobs.odd_indices, {}),
    (jobs.interleaved, {}),
    (jobs.curriculum, {}),
    (jobs.bucketed, {}),
]


def test_healthy_trainings_are_left_alone() -> None:
    recording, _ = jobs.watched(jobs.one_after_the_other, trainings=HEALTHY, timeout=250)
    assert [(one.code, one.title, str(one.place)) for one in found(recording)] == []


def test_ranks_that_share_a_model_may_read_the_same() -> None:
    trainings = [(jobs.tensor_parallel, {}), (jobs.pipelined, {})]
    recording, handed = jobs.watched(jobs.one_after_the_other, trainings=trainings)
    assert handed[0] == handed[1]
    assert found(recording) == []


def test_ranks_that_look_one_batch_up_in_their_own_tables_may_read_the_same() -> None:
    recording, handed = jobs.watched(jobs.tables_on_each_rank)
    assert handed[0] == handed[1]
    finding = only(recording)  # no losses are on record, which would tell that each rank trains on its part
    assert (finding.code, finding.severity, finding.confidence) == ("DD304", NOTE, POSSIBLE)
    assert "they exchange activations by all_to_all" in finding.why
    assert [one.patch for one in finding.prescriptions] == [None]


def test_on_a_mesh_data_are_divided_among_replicas_and_equal_within_each() -> None:
    recording, handed = jobs.watched(jobs.on_a_mesh, ranks=4)
    assert handed[0] == handed[1] != handed[2] == handed[3]
    assert found(recording) == []


def test_ranks_that_hold_parts_of_one_model_and_are_dealt_different_shares_are_found() -> None:
    recording, _ = replicas.watched(mesh_loaders.sharded, by_job=True)
    checks = [check for check in load().checks.values() if check.code.startswith(("DD2", "DD3"))]
    (finding,) = [one for one in examine(recording, checks).findings if one.severity != NOTE]

    assert (finding.code, finding.ranks, finding.confidence) == ("DD311", (0, 1), LIKELY)
    assert "hold parts of one model" in finding.title
    assert [place.role for place in finding.places[-2:]] == [
        "the loader is created, sampler DistributedSampler",
        "sums over these ranks what each makes of its batch, [8, 16]",
    ]
    recording, _ = replicas.watched(mesh_loaders.sharded, by_job=False)
    assert examine(recording, checks).findings == ()


def test_a_small_test_set_on_every_rank_is_a_note() -> None:
    finding = only(jobs.watched(jobs.tested_everywhere)[0])
    assert (finding.code, finding.severity, finding.ranks) == ("DD304", NOTE, (0, 1))
    assert finding.title == "ranks 0-1 each evaluate the whole dataset of 12 samples"
