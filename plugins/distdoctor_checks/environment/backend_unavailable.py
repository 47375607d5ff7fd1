"""
DD602 backend-unavailable: this torch or this machine cannot use the backend or the device that was asked for.

What it means    nccl without a CUDA device, a backend that this torch was built without, CUDA where torch or the driver is
                 missing, or a tensor on a device that the group's backend does not serve.
Why it hurts     Every rank fails on its own with a traceback through torch, or the ranks that find a device wait for those
                 that do not.
How we know      The exception that ended the ranks says so in torch's own words. What `run --backend` asks for is compared
                 with torch.distributed.is_mpi_available() and torch.cuda.device_count() before the ranks start, and so is
                 what `preflight --backend` asks for.
What to do       Use gloo on the CPU and nccl on GPUs, or one group for both ("cpu:gloo,cuda:nccl"); where a GPU should be
                 there, look at nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda.
When it is fine  Never. A script that catches the exception and falls back to another backend is not reported.
Source           torch.distributed.init_process_group, torch/csrc/distributed/c10d/init.cpp, torch/cuda/__init__.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_own_error
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import from_exception
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


class Refusal(NamedTuple):
    """What torch says when a backend or a device cannot be used."""

    words: re.Pattern[str]  # of the exception; its groups fill the title and the change
    title: str
    change: str


NVIDIA = "on a machine with GPUs, compare nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda"
REFUSALS = tuple(
    Refusal(re.compile(words, re.IGNORECASE), title, change)
    for words, title, change in (
        (
            r"ProcessGroupNCCL is only supported with GPUs|nccl2? requires at least one CUDA device",
            "backend nccl needs a CUDA device, and this process sees none",
            f'pass "gloo" to init_process_group on a CPU; {NVIDIA}',
        ),
        (
            r"Distributed package doesn't have (\w+) built in",
            "backend {0} is not part of this build of torch",
            'pass "nccl" (GPUs) or "gloo" (CPU) to init_process_group, or install a build of torch that has {0}',
        ),
        (
            r"Unknown c10d backend type (\w+)",
            "backend {0} is unknown to this process",
            "import the package that registers {0} before init_process_group, or use nccl (GPUs) or gloo (CPU)",
        ),
        (
            r"No backend type associated with device type (\w+)",
            "the process group has no backend for {0} tensors",
            'move the tensor to a device that the group serves, or init_process_group("cpu:gloo,cuda:nccl")',
        ),
        (
            r"Torch not compiled with CUDA enabled",
            "the script asks for CUDA, and this torch was built without it",
            "install a build of torch with CUDA (pytorch.org/get-started), or let the script take the CPU and gloo",
        ),
        (
            r"Found no NVIDIA driver on your system|No CUDA GPUs are available|CUDA driver version is insufficient",
            "the script asks for CUDA, and this process sees no usable device",
            f"let the script take the CPU and gloo where torch.cuda.is_available() is False; {NVIDIA}",
        ),
    )
)


@check("DD602", "backend-unavailable", severity=ERROR, stands_alone=True, stalls=Stalls.FOREVER, specificity=30)
def examine(trial: PreflightTrial | None, verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if trial is not None and trial.machine.devices == 0:
        yield Finding(
            title=f"backend {trial.found.backend} needs a CUDA device, and none is visible on {trial.machine.host}",
            confidence=CERTAIN,
            evidence={"CUDA devices here": 0},
            why="Each rank fails when it makes its group.",
            prescriptions=(Prescription("backend-of-the-device", change=f"use --backend gloo on a CPU; {NVIDIA}"),),
        )
    if log is not None and log.own_error is not None and (told := _refused(log.own_error.words)):
        yield from_own_error(log, *told)
    for incident in verdict.of_kind(IncidentKind.FAILED) if verdict is not None else ():
        if incident.ending is not None and (told := _refused(incident.ending.words)):
            yield from_exception(incident, *told, whose="torch's")


def _refused(words: str) -> tuple[str, Prescription] | None:
    for refusal in REFUSALS:
        if found := refusal.words.search(words):
            names = found.groups()
            return refusal.title.format(*names), Prescription(
                "backend-of-the-device", change=refusal.change.format(*names)
            )
    return None


def sick() -> Recording:
    return recording(ranks=2).raises(
        range(2), "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", site="train.py:9 main"
    ).finished()  # fmt: skip


def healthy() -> Recording:
    """Another error of the same call."""
    return recording(ranks=2).raises(
        range(2), "RuntimeError: trying to initialize the default process group twice!", site="train.py:9 main"
    ).finished()  # fmt: skip
