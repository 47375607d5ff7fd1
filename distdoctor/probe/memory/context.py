"""What the parts of the memory stream share: the trace, the modules, what is counted, and how far this rank is."""

from __future__ import annotations

from distdoctor.probe.context import Rank
from distdoctor.probe.memory.device_memory import DeviceMemory
from distdoctor.probe.memory.host_memory import ResidentMemory
from distdoctor.probe.memory.storages import Storages
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.tensors.module_trees import ModuleTrees
from distdoctor.probe.writer import TraceWriter


class MemoryContext(ProbeStream):
    """One for a rank. Trouble in any part ends the stream, and nothing else."""

    name = "memory"

    def __init__(self, rank: Rank, trace: TraceWriter, deep: bool) -> None:
        super().__init__(rank, trace, deep)
        self.trees = ModuleTrees(self.guarded)
        self.resident = ResidentMemory()
        self.device = DeviceMemory()
        self.step = 0
        self.gradients_asked = 0
        """Backward passes and calls of torch.autograd.grad."""
        self.known = Storages()
        """Storages that belong to the model and its optimizers, as they were counted last."""
