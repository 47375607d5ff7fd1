"""What a rank's own lines set and await in a store is on record, the last key of each line, and nothing of it changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from jobs import run_ranks

from distdoctor.recording.trace.events import KeyAwaited, KeySet
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job


def talks(rank: int, world_size: int, folder: str) -> None:
    from distdoctor.probe.start import start

    start(folder, ProbeSettings())
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", world_size), rank=rank, world_size=world_size
    )
    store = dist.PrefixStore("own", dist.FileStore(f"{folder}/store", world_size))
    for turn in range(3):
        if rank == 1:
            store.set(f"ready/{turn}", "yes")
        else:
            store.wait([f"ready/{turn}"])
            assert store.get(f"ready/{turn}") == b"yes"
    if rank == 0:
        with pytest.raises(RuntimeError):
            store.wait(["ready/never"], timedelta(milliseconds=50))
    dist.barrier()
    dist.destroy_process_group()


def test_the_last_keys_of_each_line_are_on_record(tmp_path: Path) -> None:
    results = run_ranks(talks, 2, str(tmp_path), join=False)
    assert [result.exit_code for result in results] == [0, 0], results
    recording = read_run(tmp_path)

    (was_set,) = recording.ranks[1].noted(KeySet)
    waits = list(recording.ranks[0].noted(KeyAwaited))
    assert was_set.keys == ("ready/2",)
    assert [(one.keys, one.over) for one in waits] == [
        (("ready/2",), True), (("ready/2",), True), (("ready/never",), False)
    ]  # fmt: skip
    assert [one.site.function for one in waits] == ["talks"] * 3
