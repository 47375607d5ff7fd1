"""
DD502 data-parallel: nn.DataParallel where DistributedDataParallel would be faster.

What it means    DataParallel drives all devices from one Python process: it copies the model to each in every forward.
Why it hurts     The GIL and the first device are the bottleneck; it does not work across nodes at all.
How we know      The constructor is called.
What to do       One process per device: torchrun and DistributedDataParallel.
When it is fine  A quick experiment in a notebook: this is only a note.
Source           torch.nn.DataParallel: "it is recommended to use DistributedDataParallel".
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.finding import NOTE
from distdoctor.lint.program import DP, ParsedFiles
from distdoctor.lint.rule import Sighting, rule


@rule("DD502", "data-parallel", severity=NOTE)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.kind_of_call(call, scope.file) == DP:
                yield Sighting(
                    node=call,
                    scope=scope,
                    title="DataParallel drives all devices from one process; DistributedDataParallel is faster",
                    why="the model is copied to every device in each forward, and one Python interpreter drives them all",
                    remedy="one-process-per-device",
                )


SICK = """
import torch.nn as nn
def build(net): return nn.DataParallel(net)
"""
HEALTHY = """
import torch.nn as nn
def build(net): return nn.parallel.DistributedDataParallel(net)
"""
