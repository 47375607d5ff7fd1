"""The numbers that a trace has for torch's dtypes."""

from __future__ import annotations

import torch

from distdoctor.recording.trace.layout import DTYPES

DTYPE_NUMBER = {getattr(torch, name): number for number, name in enumerate(DTYPES) if name and hasattr(torch, name)}
