"""What is fitted to one rank's share of the data, and what is not, or is put together afterwards."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.fitted_tables import fitted_tables

READS = """
def read(paths):
    return [line for path in paths for line in open(path)]

class Encoder:
    def fit(self, rows):
        self.table = {row: number for number, row in enumerate(rows)}
        return self
"""
SICK = {
    "of an object": "mine = read(paths[rank::world_size])\nencoder = Encoder().fit(mine)",
    "in place": "scaler = StandardScaler()\nscaler.fit(rows[dist.get_rank()::dist.get_world_size()])",
    "of an iterator": "vocab = build_vocab_from_iterator(islice(lines, rank, None, world_size))",
}
HEALTHY = {
    "of all": "encoder = Encoder().fit(read(paths))\nmine = read(paths[rank::world_size])",
    "sent": "encoder = Encoder().fit(read(paths[rank::world_size]))\ndist.all_gather_object(parts, encoder.table)",
    "put together by a helper": """
        def merge(encoder):
            dist.all_reduce(encoder.counts)
        encoder = Encoder().fit(read(paths[rank::world_size]))
        merge(encoder)
        """,
    "training": "trainer = Trainer()\ntrainer.fit(rows[rank::world_size])",
}


@pytest.mark.parametrize("how", SICK)
def test_what_is_fitted_to_a_share_is_found(how: str) -> None:
    (one,) = fitted_tables({"main.py": READS + SICK[how]})
    assert one.name in ("encoder", "scaler", "vocab")
    assert one.fitted.line == len((READS + SICK[how]).splitlines())


@pytest.mark.parametrize("how", HEALTHY)
def test_what_all_ranks_fit_alike_or_send_is_not(how: str) -> None:
    assert fitted_tables({"main.py": READS + dedent(HEALTHY[how])}) == []
