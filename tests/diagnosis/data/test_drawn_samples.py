"""A dataset that does not read its index: equal random numbers are equal samples there."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, WARNING, Finding
from distdoctor.diagnosis.source.unread_index import unread_index
from distdoctor.testing.samples import SOURCE, sampled_job

CHOSEN = """class Digits(Dataset):
    def __getitem__(self, index):
        index = random.randrange(len(self.rows))
        return self.rows[index]
"""
READ = CHOSEN.replace("index = random", "other = random")
KEPT = CHOSEN.replace("index = random.randrange(len(self.rows))", "index = index + random.randrange(2)")


def told(source: str, digest: str | dict[int, str] = "one", torch: tuple[int, int] = (7, 7)) -> Finding:
    """Ranks that read with NumPy's generator in one state and torch's in these."""
    job = sampled_job(ranks=2, length=100).train(digest=digest)
    for rank, log in enumerate(job.logs):
        log.worker(1, 0, 0b101, torch=torch[rank], random=rank, numpy=5)
    recording = job.recording(sources={"/job/train.py": SOURCE, "/job/data.py": source})
    (found,) = examine(recording, [one for one in PLUGINS.checks.values() if one.code == "DD308"]).findings
    return found


def test_equal_random_numbers_that_choose_samples_are_a_warning() -> None:
    found = told(CHOSEN)

    assert (found.severity, found.confidence, found.ranks) == (WARNING, LIKELY, (0, 1))
    assert found.title.startswith("ranks 0-1 draw the same samples of Digits: numpy's generator starts from")
    assert (found.places[0].site.path, found.places[0].site.line) == ("/job/data.py", 2)


@pytest.mark.parametrize(
    "about",
    [{"source": READ}, {"source": CHOSEN, "digest": {0: "one", 1: "other"}}, {"source": CHOSEN, "torch": (7, 8)}],
    ids=["the index is read", "other data on each rank", "another generator began apart"],
)
def test_equal_random_numbers_are_a_note_else(about: dict[str, object]) -> None:
    found = told(**about)  # type: ignore[arg-type]

    assert (found.severity, found.confidence) == (NOTE, CERTAIN)
    assert found.title.startswith("ranks 0-1 draw the same random numbers: ")


@pytest.mark.parametrize(("source", "line"), [(CHOSEN, 2), (READ, 0), (KEPT, 0), ("", 0)])
def test_an_index_is_unread_where_nothing_takes_its_value(source: str, line: int) -> None:
    assert unread_index({"/job/data.py": source}, "Digits").line == line
