"""Evaluations that keep what they compute: memory that grows with every batch between `eval()` and `train()`.

What the process has for itself and on its device is read before each batch that a DataLoader is asked for. What grows in each
third of the batches is kept by them; the variables of the functions that run then, a framework's too, are compared with those of
an earlier look. Nothing is read after a backward pass: such batches are trained on.
"""

from __future__ import annotations

from distdoctor.probe import sites
from distdoctor.probe.memory.context import MemoryContext
from distdoctor.probe.memory.holders import HolderScan, Unit
from distdoctor.recording.trace.events import EvaluationGrew

FIRST = 4  # batches: what is made for the first time is there
LEAST_BATCHES = 16
LEAST_GROWTH = 32 << 20
SUSPECTED = 4 << 20  # in the first batches: then variables are looked at
LEAST_SHARE = 0.15  # of the growth, in each third of the batches
MOST_READINGS = 64  # then every other one is forgotten
MOST_SCANS = 8  # of a job
SCAN_SECONDS = 0.05


class EvaluationGrowth:
    """The readings of one evaluation after the other."""

    def __init__(self, context: MemoryContext) -> None:
        self.context = context
        self._open = False
        self._asked = self._gradients = self._site = self._scans = 0
        self._read: list[int] = []
        self._stride = 1
        self._known: dict[tuple[str, str], int] = {}
        self._told = self._told_before = False  # of this evaluation, of an earlier one

    def begin(self) -> None:
        """`eval()` of a model that was training."""
        self._open, self._asked, self._read, self._stride = True, 0, [], 1
        self._known, self._told = {}, False
        self._gradients = self.context.gradients_asked
        self._site = self.context.trace.texts.id(sites.user_site())

    def end(self) -> None:
        """`train()`."""
        if self._open and self._told_before and not self._told and self._asked > LEAST_BATCHES and not self._grows():
            self._tell("", "", 0)  # what grew in an earlier one does not grow again
        self._open = False

    def next_batch(self) -> None:
        """A DataLoader is asked for a batch: the ones before it are done."""
        if not self._open:
            return
        if self.context.gradients_asked != self._gradients:
            self._open = False
            return
        done, self._asked = self._asked, self._asked + 1
        if done < FIRST or done % self._stride:
            return
        self._read.append(self._held())
        if len(self._read) > MOST_READINGS:
            self._read, self._stride = self._read[::2], 2 * self._stride
        if done & (done - 1):
            return
        if done == 2 * FIRST and self._read[-1] - self._read[0] >= SUSPECTED:
            self._known = {(unit.label, unit.site): unit.bytes for unit in self._units()}
        elif done >= LEAST_BATCHES and self._grows():
            self._tell(*self._grown_most())
            self._told = self._told_before = True

    def _held(self) -> int:
        own, shared = self.context.resident.both()
        return own - shared + max(0, self.context.device.now().allocated)

    def _grows(self) -> bool:
        read, last = self._read, len(self._read) - 1
        grown = read[-1] - read[0]
        thirds = [read[(third + 1) * last // 3] - read[third * last // 3] for third in range(3)]
        return grown >= LEAST_GROWTH and min(thirds) >= LEAST_SHARE * grown

    def _grown_most(self) -> tuple[str, str, int]:
        """(name, the library's file whose variable it is, bytes more than at the first look) of what grew most."""
        grown = [
            (unit.bytes - self._known[unit.label, unit.site], unit.label, unit.site)
            for unit in self._units()
            if (unit.label, unit.site) in self._known
        ]
        more, label, site = max(grown, default=(0, "", ""))
        if more <= 0:
            return "", "", 0
        path = site.partition("\0")[0]
        return label, "" if sites.belongs_to_user(path) else path.rpartition("-packages/")[2], more

    def _units(self) -> list[Unit]:
        if self._scans >= MOST_SCANS:
            return []
        self._scans += 1
        scan = HolderScan(self.context.known, only_frames=True, libraries=True, seconds=SCAN_SECONDS)
        units = scan.units()
        if scan.failure is not None:
            self.context.leave_out("a holder was left out", scan.failure)
        return units

    def _tell(self, label: str, library: str, held: int) -> None:
        grown = self._read[-1] - self._read[0]
        told = EvaluationGrew(label, library, held, grown, self._read[-1], self._asked - 1)
        self.context.trace.note(told, site=self._site)
