"""A device that is nearly full is explained by what fills it; a device with room, and a job without one, by nothing."""

from __future__ import annotations

import pytest

from distdoctor.testing.memory import MIB, memory_job
from distdoctor_checks.memory import activation_bound, optimizer_bound, parameter_bound

CHECKS = {"DD402": activation_bound, "DD403": optimizer_bound, "DD404": parameter_bound}


@pytest.mark.parametrize("code", CHECKS)
def test_only_what_fills_the_device_is_named(code: str) -> None:
    found = {other: check.examine.look(CHECKS[code].sick()) for other, check in CHECKS.items()}

    assert [other for other, findings in found.items() if findings] == [code]
    assert found[code][0].ranks == (0, 1)


def test_the_parts_of_the_peak_are_spelt_out_and_the_saving_is_computed() -> None:
    finding = optimizer_bound.examine.look(optimizer_bound.sick())[0]

    assert finding.why.startswith("2.44 GiB parameters and gradients + 2.93 GiB optimizer state + 1.86 GiB activations")
    assert finding.prescriptions[0].effect == "1.46 GiB per rank, divided by 2"


def test_one_full_rank_of_four_is_the_one_that_is_named() -> None:
    job = memory_job(4).trains(
        4, device=0, capacity=8_000 * MIB, peak={0: 3_000 * MIB, 1: 3_000 * MIB, 2: 7_900 * MIB, 3: 3_000 * MIB}
    )

    assert [finding.ranks for finding in activation_bound.examine.look(job.recording())] == [(2,)]


def test_a_job_on_the_cpu_is_left_alone_however_full_the_host_is() -> None:
    job = memory_job(2).trains(4, rss=7_900 * MIB, limit=8_000 * MIB, available=10 * MIB, state=5_000 * MIB)

    assert not any(check.examine.look(job.recording()) for check in CHECKS.values())
