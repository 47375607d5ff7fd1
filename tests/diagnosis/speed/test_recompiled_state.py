"""A function that is compiled anew for each value of a number is told by the line that asks for the number."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Compiled
from distdoctor.testing.rank_trace import TraceBuilder

SOURCE = "class Net(Module):\n    def forward(self, x):\n        heat = 2.0 - self.step / 8\n        return x / heat\n"
ASKED = "3/0: self.step == {value}                # heat = 2.0 - self.step / 8  # job/net.py:3 in forward (HINT: torch"


def told(reason: str) -> Finding:
    log = TraceBuilder(0, world_size=1)
    for version in range(6):
        log.note(
            Compiled(f"3/{version}", reason.format(value=version) if version else "", version, 10**9),
            site="train.py:30 train",
        )
        log.note(Compiled(f"3/{version}", "", version, 10**9), site="train.py:31 train")  # its backward
    (finding,) = PLUGINS.checks["DD514"].look(
        Recording(Job(world_size=1), {0: log.build()}, sources={"/job/net.py": SOURCE})
    )
    return finding


def test_the_line_of_the_guard_comes_first_and_backward_is_no_version_of_its_own() -> None:
    finding = told(ASKED)

    assert finding.title == "torch.compile recompiled one function 5 times in 5 steps, 10.0 s"
    assert (finding.place.path, finding.place.line) == ("/job/net.py", 3)
    assert "`self.step`" in finding.prescriptions[0].change


def test_a_guard_on_a_size_keeps_the_line_of_the_call_and_its_remedy() -> None:
    finding = told("3/0: tensor 'x' size mismatch at index 1. expected 64, actual {value}")

    assert (finding.place.line, finding.prescriptions[0].change) == (30, "")
    assert finding.evidence["guard"] == "tensor 'x' size mismatch at index 1. expected 64, actual 5"
