"""A source file has one tree, however many others are read in between."""

from __future__ import annotations

from distdoctor.diagnosis.source.source_file import parse
from distdoctor.diagnosis.source.user_program import program_of


def test_a_program_and_whoever_reads_its_files_see_the_same_nodes() -> None:
    sources = {"/job/train.py": "def train(rank):\n    return rank\n"}
    program = program_of(sources)
    for number in range(400):  # more than are kept
        parse(f"/job/other_{number}.py", "x = 1\n")

    assert parse("/job/train.py", sources["/job/train.py"]) is program.files[0]
