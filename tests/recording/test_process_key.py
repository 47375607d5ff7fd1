"""A pid belongs to one boot and one PID namespace; a source file is evidence as long as it is what ran."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.attach.jobs import job_of_run
from distdoctor.attach.processes import HostProcesses
from distdoctor.errors import NothingToInspect
from distdoctor.launch.processes import this_process
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.trace.layout import HEADER, site_text
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.run_folder import read_run, trace_paths


def test_a_pid_of_another_namespace_boot_or_time_is_not_ours() -> None:
    here = this_process()

    assert here.lives_here
    assert not replace(here, pid_namespace=here.pid_namespace + 1).lives_here
    assert not replace(here, boot="0" * 32).lives_here
    assert not replace(here, started=here.started + 1).lives_here


def test_a_trace_without_a_boot_id_is_known_by_its_host() -> None:
    old = ProcessKey(os.getpid(), 0, os.uname().nodename[:63])

    assert old.lives_here
    assert not replace(old, host="elsewhere").lives_here


def test_a_local_process_is_never_taken_for_a_rank_of_another_host(tmp_path: Path) -> None:
    TraceWriter(str(tmp_path), 2, 4, 0, 0)
    path = trace_paths(tmp_path)[2]
    ours = path.read_bytes()
    assert job_of_run(tmp_path, HostProcesses.now()).ranks[2].pid == os.getpid()

    at = HEADER.offsets["boot"]
    path.write_bytes(ours[:at] + bytes(range(16)) + ours[at + 16 :])

    with pytest.raises(NothingToInspect):
        job_of_run(tmp_path, HostProcesses.now())


def test_an_edited_source_is_never_quoted(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("if ILL == 'hang': pass\n")
    TraceWriter(str(tmp_path), 0, 1, 0, 0).texts.id(site_text(str(source), 1, "main"))

    assert with_sources(read_run(tmp_path)).sources == {str(source): "if ILL == 'hang': pass\n"}
    source.write_text("if rank >= 2: pass\n")
    edited = with_sources(read_run(tmp_path))

    assert edited.sources == {}
    assert [trouble.what for trouble in edited.troubles] == [
        f"{source} was changed after it was recorded: its lines are not quoted"
    ]


def test_hosts_that_run_different_versions_of_a_file_are_named(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    found = {}
    for rank, text in enumerate(("one = 1\n", "one = 1\n", "two = 2\n")):
        source.write_text(text)
        folder = tmp_path / str(rank)
        folder.mkdir()
        TraceWriter(str(folder), rank, 3, 0, 0).texts.id(site_text(str(source), 1, "main"))
        found |= read_run(folder).ranks

    told = with_sources(Recording(Job(world_size=3), found)).troubles

    assert [trouble.what for trouble in told] == [
        f"ranks run different versions of {source} (ranks 0-1, rank 2): its lines are not quoted"
    ]
