"""A backend or a device that cannot be had is told in one sentence, not as "fix the error"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.recording.job_log import parse_log
from distdoctor.testing import recording

CHECKS = plugins.load().checks.values()
FALLS_BACK = """
import torch.distributed as dist

try:
    dist.init_process_group("mpi")
except RuntimeError:
    dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("words", "code", "title"),
    [
        ("RuntimeError: nccl2 requires at least one CUDA device", "DD602", "backend nccl needs a CUDA device"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "DD602", "backend nccl needs"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "DD602", "backend NCCL is not part of"),
        ("RuntimeError: Unknown c10d backend type HCCL", "DD602", "backend HCCL is unknown"),
        ("RuntimeError: No backend type associated with device type cpu", "DD602", "no backend for cpu tensors"),
        ("AssertionError: Torch not compiled with CUDA enabled", "DD602", "this torch was built without it"),
        ("RuntimeError: No CUDA GPUs are available", "DD602", "sees no usable device"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "DD601", "device number that this process"),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage\nncclInvalidUsage: This usually "
         "reflects invalid usage.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 65000",
         "DD601", "ranks 0-1 of one NCCL group share CUDA device 65000"),
        ("RuntimeError: The server socket has failed to listen on any local network address", "DD110", "raised RuntimeError"),
    ],
)  # fmt: skip
def test_what_torch_and_the_driver_say_is_told_as_what_it_is(words: str, code: str, title: str) -> None:
    died = recording(ranks=2).raises(range(2), words, site="train.py:9 main").finished()

    (first, *others) = examine(died, CHECKS).findings

    assert (first.code, others) == (code, [])
    assert title in first.title


DUPLICATE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 12, in <module>
[rank1]:     dist.barrier()
[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details)
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device c1000
"""
ORDINAL = """\
[rank1]:   File "/home/u/train.py", line 9, in <module>
[rank1]: RuntimeError: CUDA error: invalid device ordinal
[rank0]: torch.distributed.DistBackendError: Connection closed by peer
"""


@pytest.mark.parametrize(("log", "line"), [(DUPLICATE, 12), (ORDINAL, 9)])
def test_a_log_tells_it_too(log: str, line: int) -> None:
    (finding,) = examine(parse_log(log), CHECKS).findings

    assert (finding.code, finding.confidence, finding.ranks) == (
        "DD601",
        "likely",
        (0, 1) if log is DUPLICATE else (1,),
    )
    assert finding.place.line == line


@pytest.mark.job
def test_a_backend_that_this_torch_does_not_have_is_named_and_a_script_that_falls_back_is_left_in_peace(
    distdoctor: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text('import torch.distributed as dist\n\ndist.init_process_group("mpi")\n')
    (tmp_path / "falls_back.py").write_text(FALLS_BACK)

    refused, healthy = (
        distdoctor("run", "--nproc", 2, "--output-format", "json", name) for name in ("train.py", "falls_back.py")
    )

    (finding,) = refused.document["findings"]
    assert (finding["code"], finding["confidence"], sorted(finding["ranks"])) == ("DD602", "certain", [0, 1])
    assert finding["place"]["line"] == 3
    assert (healthy.code, healthy.document["findings"]) == (0, [])
