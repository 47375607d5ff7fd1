"""All pictures that a recording gives, those that belong to the verdict first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from distdoctor.diagnosis.check import NotSeen
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


def _drawn(draws: list[Draw], recording: Recording) -> Iterator[Picture]:
    for draw in draws:
        try:
            found = draw(recording)
        except NotSeen:
            continue
        except Exception as trouble:  # a picture less is better than no report
            found = _failed(draw, trouble)
        if found is not None:
            yield found


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
