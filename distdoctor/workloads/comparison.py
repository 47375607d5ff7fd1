"""Train one step twice, as a strategy does and in one process, on the same batch, and compare the gradients layer by layer.

Rounding explains a difference up to a bound; a constant factor beyond it is a wrong average, and is named as what it is.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import CouldNotLook
from distdoctor.recording.comparison import Comparison, Layer
from distdoctor.workloads.request import TrainingRequest

if TYPE_CHECKING:
    from distdoctor.workloads.baseline import BaselineStep

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-11}
SAFETY = 8.0
"""Rounding errors behave like a random walk: with n terms the error stays below SAFETY * sqrt(n) * u except with a probability of
2 exp(-SAFETY^2 / 2), that is 10^-13 (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019)."""
SMALL = 0.01  # a layer whose gradient is far smaller than the others' inherits their rounding errors
SECONDS = 300


ROUNDINGS = 4
"""In 16 bits every layer rounds what goes in and what comes out, forward and backward; sums are kept in 32 bits."""
_OWN_ARITHMETIC = ("fsdp", "hybrid")
"""Strategies whose 16 bits are not autocast's: parameters themselves are cast, and so are sums over the rows of a batch."""


def compare_with_single(request: TrainingRequest, ranks: int, single: str) -> Comparison:
    """Train one step both ways, in the same precision. `single` is the `train` of the strategy of one process.

    CouldNotLook: one of the two trainings failed.
    """
    one_step = replace(request, steps=1, epochs=1, evaluate=False, save=None, resume=None, result=None)
    return compared(_train(one_step, ranks), _train(baseline_of(one_step, single), 1), one_step, ranks)


def baseline_of(request: TrainingRequest, single: str) -> TrainingRequest:
    """What one process trains to compare with: `single`, or the strategy itself where its 16 bits are its own."""
    plain = replace(request, drills=(), accumulate=1, offload=False, checkpoint_activations=False)
    if precision_of(request) != "fp32" and request.strategy in _OWN_ARITHMETIC:
        options = {key: None if key == "mesh" else value for key, value in request.options.items()}
        return replace(plain, options=options)
    precision = precision_of(request)
    return replace(plain, strategy="single", train=single, options={}, precision=precision)


def precision_of(request: TrainingRequest) -> str:
    return request.precision or ("fp16" if request.strategy == "amp" else "fp32")


def compared(found: BaselineStep, baseline: BaselineStep, request: TrainingRequest, ranks: int) -> Comparison:
    """The comparison of two sets of gradients by name."""
    precision, other = precision_of(request), baseline_of(request, "").strategy
    matrices = [gradient for gradient in baseline.gradients.values() if gradient.dim() > 1]
    # The longest chain of additions: the rows of the batch, and the inner dimension of every layer on the way.
    terms = baseline.rows + sum(gradient.shape[-1] for gradient in matrices)
    bound = SAFETY * math.sqrt(terms) * UNIT_ROUNDOFF["fp32"]
    own_sums = bound
    if precision != "fp32":
        bound += SAFETY * math.sqrt(ROUNDINGS * max(1, len(matrices))) * UNIT_ROUNDOFF[precision]
        own_sums = bound
        if request.strategy in _OWN_ARITHMETIC:
            own_sums += SAFETY * math.sqrt(baseline.rows) * UNIT_ROUNDOFF[precision]
    whole = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in baseline.gradients.values()))
    layers = []
    for name, expected in baseline.gradients.items():
        gradient = found.gradients.get(name)
        if gradient is None or gradient.shape != expected.shape:
            continue
        size = float(expected.norm())
        scale = max(size, SMALL * whole) or 1.0
        factor = float((gradient * expected).sum()) / (size * size) if size else math.nan
        error, norm = float((gradient - expected).norm()) / scale, float(gradient.norm())
        allowed = own_sums if expected.dim() == 1 else bound
        layers.append(Layer(name, norm, size, error if math.isfinite(error) else math.inf, allowed, factor))
    missing = found.gradients.keys() ^ baseline.gradients.keys()
    both = found.gradients.keys() & baseline.gradients.keys()
    missing |= {name for name in both if found.gradients[name].shape != baseline.gradients[name].shape}
    return Comparison(
        layers=tuple(layers),
        missing=tuple(sorted(missing)),
        terms=terms,
        precision=precision,
        ranks=ranks,
        accumulate=request.accumulate,
        strategy=request.strategy,
        baseline=other if other == "single" else f"{other} on one rank",
        noisy=baseline.noisy,
    )


def _train(request: TrainingRequest, ranks: int) -> BaselineStep:
    from distdoctor.workloads import baseline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        replace(request, drills=(*request.drills, baseline.PLANT), result=folder).write(path)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        env = {**os.environ, "DISTDOCTOR": "0"}
        done = subprocess.run(
            [*command, "-m", "distdoctor.workloads.train", str(path)],
            check=False,
            capture_output=True,
            text=True,
            env=env,
            timeout=SECONDS,
        )
        if done.returncode:
            raise CouldNotLook(
                f"the comparison could not be made: {request.strategy} on {ranks} ranks failed\n{done.stderr[-2000:]}",
                way_out=f"Try `distdoctor run --strategy {request.strategy} --nproc {ranks}` by itself.",
            )
        return baseline.read(Path(folder))
