"""A class that takes the number of its rank from what gives a constant while there is no process group."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.asked_early import number_without_group, rank_of_another_launcher

SOURCE = """def world_info():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def number():
    if not dist.is_initialized():
        raise RuntimeError("too early")
    return dist.get_rank()


class Stream(IterableDataset):
    def __init__(self, split=True, rank=0):
        {stored}
"""


@pytest.mark.parametrize(
    ("stored", "lines"),
    [
        ("self.rank, self.world = world_info()", [15, 4]),
        ("self.rank, self.world = world_info() if split else (0, 1)", [15, 4]),
        ("self.rank = dist.get_rank() if dist.is_initialized() else 0", [15]),
        ("self.rank = number()", []),
        ("self.rank = rank", []),
        ("self.rank = 0", []),
        ("self.epoch, self.seed = world_info()", []),
    ],
)
def test_the_line_that_takes_the_number_and_the_constant_are_found(stored: str, lines: list[int]) -> None:
    found = number_without_group({"data.py": SOURCE.format(stored=stored)}, "Stream")

    assert [line.line for line, _ in found] == lines
    assert not number_without_group({"data.py": SOURCE.format(stored=stored)}, "Other")


def test_a_rank_that_is_read_from_what_another_launcher_sets_is_shown() -> None:
    sources = {"/job/cluster.py": 'def placement():\n    return int(os.environ.get("SLURM_PROCID", 0))\n'}
    assert [(line.line, text) for line, text in rank_of_another_launcher(sources)] == [
        (2, "os.environ.get('SLURM_PROCID', 0)")
    ]
    own = {
        "/job/cluster.py": 'def placement():\n    return int(os.environ.get("RANK", 0)), os.environ["SLURM_PROCID"]\n'
    }
    assert rank_of_another_launcher(own) == []
