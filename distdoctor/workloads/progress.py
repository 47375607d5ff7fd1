"""What a person sees while the reference training runs: one line that moves on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

TERMINAL_SECONDS = 0.1
PLAIN_SECONDS = 5.0


class Progress:
    """Shows steps, loss and speed; rank 0's only, on stderr, so that stdout keeps what the training has to say."""

    def __init__(self, *, shown: bool, steps: int, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._shown = shown
        self._steps = steps
        self._terminal = self._stream.isatty()
        self._pause = TERMINAL_SECONDS if self._terminal else PLAIN_SECONDS
        self._last = time.monotonic()

    def step(self, epoch: int, step: int, loss: Callable[[], float], samples_per_second: float) -> None:
        """One step is done. `loss` is asked only when it is shown: reading it waits for the device."""
        now = time.monotonic()
        if self._shown and now - self._last >= self._pause:
            self._last = now
            self._write(
                f"epoch {epoch + 1}  step {step + 1}/{self._steps}  loss {loss():.4f}  "
                f"{samples_per_second:,.0f} samples/s per rank"
            )

    def epoch(self, epoch: int, loss: float | None, accuracy: float | None, samples_per_second: float) -> None:
        """One epoch is over; its line stays on the terminal."""
        if not self._shown:
            return
        parts = [f"epoch {epoch + 1}"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if accuracy is not None:
            parts.append(f"test accuracy {accuracy:.1%}")
        parts.append(f"{samples_per_second:,.0f} samples/s per rank")
        self._write("  ".join(parts), stays=True)

    def _write(self, line: str, *, stays: bool = False) -> None:
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}" + ("\n" if stays else ""))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
