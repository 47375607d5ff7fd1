"""A pointer whose checkpoint was removed again is told with what removed it."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.trace.events import Exiting, Pointer, Saving
from distdoctor.testing.gradients import trained_job

PRUNES = """
def save(root, step, state):
    torch.save(state, root / f"step_{step}" / "state.pt")
    (root / "latest.json").write_text(json.dumps({"folder": f"step_{step}"}))
    folders = sorted(root.glob("step_*"))
    for old in folders[:-2]:
        shutil.rmtree(old)
"""


def told(target: str, beside: tuple[str, ...], source: str = PRUNES) -> Finding:
    job = trained_job(2).initial().step()
    job.note(Saving(f"{target}/state.pt", "torch.save", 1, 1_001_000_000_000), site="train.py:3 save")
    job.note(Pointer("/job/out/latest.json", (target, *beside))).note(Exiting())
    (finding,) = PLUGINS.checks["DD707"].look(job.recording(sources={"/job/train.py": source}))
    return finding


def test_names_that_are_sorted_as_texts_are_shown_where_they_are_sorted() -> None:
    finding = told("/job/out/step_12", ("step_6", "step_8"))

    assert [place.site.line for place in finding.places] == [5, 4, 3]
    assert finding.place.line == 5
    assert finding.why.endswith("sorted as texts, step_12 comes before step_6, and is removed as the oldest")


def test_a_name_that_comes_last_as_a_text_too_was_removed_for_another_reason() -> None:
    finding = told("/job/out/step_9", ("step_6", "step_8"))

    assert finding.place.line == 4
    assert "sorted as texts" not in finding.why


def test_names_that_are_sorted_by_a_key_are_not_blamed() -> None:
    finding = told("/job/out/step_12", ("step_6",), PRUNES.replace('glob("step_*"))', 'glob("step_*"), key=number)'))

    assert finding.place.line == 4
