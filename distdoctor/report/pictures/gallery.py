"""All pictures that a recording gives, those that belong to the verdict first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.recording import Recording
from distdoctor.report.pictures import collectives, samples, stacks, steps, training, wait_graph
from distdoctor.report.pictures.drawing import Picture

Draw = Callable[[Recording], Picture | None]
HANG: tuple[Draw, ...] = (collectives.picture, stacks.picture, wait_graph.picture)
REPLICAS: tuple[Draw, ...] = (training.divergence, training.loss)
DATA: tuple[Draw, ...] = (samples.coverage, samples.orders)
MEMORY: tuple[Draw, ...] = (training.memory,)
SPEED: tuple[Draw, ...] = (steps.phases, steps.skew)
ALL = (*HANG, *REPLICAS, *DATA, *MEMORY, *SPEED)
BY_AREA = {
    "hang": HANG,
    "replicas": REPLICAS,
    "numerics": REPLICAS,
    "data": DATA,
    "checkpoint": DATA,
    "memory": MEMORY,
    "speed": SPEED,
}


def pictures(diagnosis: Diagnosis) -> tuple[list[Picture], list[Picture]]:
    """Those that belong to the findings, the root cause's first, and the others."""
    recording = diagnosis.recording
    if recording is None:
        return [], []
    areas = dict.fromkeys(finding.area for finding in diagnosis.findings)
    wanted = list(dict.fromkeys(draw for area in areas for draw in BY_AREA.get(area, ())))
    return list(_drawn(wanted, recording)), list(_drawn([draw for draw in ALL if draw not in wanted], recording))


@dataclass(frozen=True)
class _Drawn:
    """The pictures of one recording, each drawn once: the page shows them, the JSON has their tables."""

    by_draw: dict[Draw, Picture | None] = field(default_factory=dict)

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls()


def _drawn(draws: list[Draw], recording: Recording) -> Iterator[Picture]:
    drawn = derived(_Drawn, recording).by_draw
    for draw in draws:
        if draw not in drawn:
            drawn[draw] = _draw(draw, recording)
        found = drawn[draw]
        if found is not None:
            yield found


def _draw(draw: Draw, recording: Recording) -> Picture | None:
    try:
        return draw(recording)
    except NotSeen:
        return None
    except Exception as trouble:  # a picture less is better than no report
        return _failed(draw, trouble)


def _failed(draw: Draw, trouble: Exception) -> Picture | None:
    """What could not be drawn is said, not hidden."""
    from distdoctor.report.pictures.drawing import Sheet
    from distdoctor.report.table import Table

    sheet = Sheet(600, 24, "a picture that could not be drawn")
    sheet.text(0, 16, f"{type(trouble).__name__}: {str(trouble)[:90]}", "quiet")
    name = f"{draw.__module__.rpartition('.')[2]}-{draw.__name__}"
    return Picture(
        name, f"{name} could not be drawn", "", sheet.done(), Table(name, name, ("trouble",), ((str(trouble),),))
    )
