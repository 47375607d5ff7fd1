"""The machine that a training is meant for: how many devices, how much memory, and what is assumed of its speed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distdoctor.errors import WrongUse

UNITS = {"GIB": 1 << 30, "G": 1 << 30, "GB": 10**9, "MIB": 1 << 20, "M": 1 << 20, "MB": 10**6}
HEADROOM = 0.08
"""Share of a device that is left alone: context, workspaces of libraries, NCCL's buffers, fragmentation. An assumption: none of
them is visible to a prediction, and they depend on driver and library."""


@dataclass(frozen=True)
class Machine:
    """`count` devices of `capacity` bytes each, of which a share of `headroom` is left alone."""

    count: int
    capacity: int
    headroom: float = HEADROOM

    @property
    def usable(self) -> int:
        return int(self.capacity * (1 - self.headroom))

    @classmethod
    def parse(cls, text: str, headroom: float = HEADROOM) -> Machine:
        """The machine that `8x80GiB` describes.

        WrongUse: it is none.
        """
        match = re.fullmatch(r"(?:(\d+)\s*[xX]\s*)?(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
        if match is None or match[3].upper() not in UNITS or int(match[1] or 1) < 1 or float(match[2]) <= 0:
            raise WrongUse(
                f"--gpus {text} says neither how many devices nor how much memory",
                way_out="Write COUNTxMEMORY, such as 8x80GiB, 2x24GB or 1x900MiB.",
            )
        return cls(int(match[1] or 1), int(float(match[2]) * UNITS[match[3].upper()]), headroom)


@dataclass(frozen=True)
class Speeds:
    """What is assumed to compare the cost of ways that fit. The order is what counts, the seconds are rough.

    The defaults are 40 % of what the data sheet of an A100 promises (312 TFLOP/s in 16 bits, 156 with TF32), a third of its
    600 GB/s of NVLink, a PCIe 4 x16 slot in practice, and a host that reads and writes 50 GB/s for one rank.
    """

    tflops_16_bit: float = 125.0
    tflops_32_bit: float = 62.0
    link_gb: float = 200.0
    host_link_gb: float = 25.0
    host_memory_gb: float = 50.0

    def tflops(self, precision: str | None) -> float:
        """Of one device, in 10^12 operations per second."""
        return self.tflops_32_bit if precision in (None, "fp32") else self.tflops_16_bit
