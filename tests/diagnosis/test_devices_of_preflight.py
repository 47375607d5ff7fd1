"""Ranks and CUDA devices of a machine are compared before any rank is started."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.testing.preflight import checked_machine

NOT_STARTED = {rank: {"trouble": "was not started"} for rank in range(4)}


@pytest.mark.parametrize(
    ("devices", "code", "title"),
    [
        (0, "DD602", "backend nccl needs a CUDA device, and none is visible on node0"),
        (1, "DD601", "4 ranks on node0, where 1 CUDA device is visible"),
        (3, "DD601", "4 ranks on node0, where 3 CUDA devices are visible"),
    ],
)
def test_too_few_devices_are_told_as_that_and_not_as_ranks_that_did_not_meet(
    devices: int, code: str, title: str
) -> None:
    loaded = PLUGINS
    machine = checked_machine(NOT_STARTED, devices=devices)
    assert machine.preflight is not None
    recording = replace(machine, preflight=replace(machine.preflight, backend="nccl"))

    [finding] = examine(recording, loaded.checks.values(), loaded.remedies).findings

    assert (finding.code, finding.title, finding.confidence) == (code, title, CERTAIN)


@pytest.mark.parametrize("devices", [None, 4, 8])
def test_enough_devices_and_a_backend_that_needs_none_are_no_finding(devices: int | None) -> None:
    loaded = PLUGINS

    assert examine(checked_machine(devices=devices), loaded.checks.values(), loaded.remedies).findings == ()
