"""`python -m distdoctor.workloads.train REQUEST.json`: one rank of one reference training.

Started by torchrun, by distdoctor's launcher, or by hand, where it is a world of one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import record

from distdoctor.errors import WrongUse
from distdoctor.workloads import result
from distdoctor.workloads.factory import imported
from distdoctor.workloads.request import TrainingRequest, validate
from distdoctor.workloads.training import Training


def train(training: Training) -> None:
    """Train as requested, as the rank that the environment says, with the asked illnesses planted."""
    request = training.request
    validate(request, training.world_size)
    for plant in request.drills:
        imported(plant)(training)
    training.join()
    imported(request.train)(training)
    if request.result:
        result.write(training, request.result)
    training.leave()


@record
def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and say in one line what came of it."""
    began = time.monotonic()
    paths = sys.argv[1:] if arguments is None else arguments
    if len(paths) != 1:
        raise SystemExit("usage: python -m distdoctor.workloads.train REQUEST.json")
    training = None
    try:
        training = Training(TrainingRequest.read(paths[0]))
        train(training)
    except WrongUse as error:
        # What is wrong with the request is so for all ranks: one says it. A missing GPU is this rank's own.
        if training is None or training.rank == 0:
            print(f"error: {error}\n{error.way_out}", file=sys.stderr, flush=True)
        raise SystemExit(WrongUse.exit_code) from None
    if training.rank == 0:
        print(summary(training, time.monotonic() - began), flush=True)


def summary(training: Training, seconds: float) -> str:
    """The last line: what was trained, how well, how long it took from start to end."""
    ranks = "1 rank" if training.world_size == 1 else f"{training.world_size} ranks"
    epochs = "1 epoch" if training.epoch == 0 else f"{training.epoch + 1} epochs"
    parts = [f"{training.request.strategy} on {ranks}, {training.device.type}", epochs, f"{training.step} steps"]
    if training.last_loss is not None:
        parts.append(f"loss {training.last_loss:.4f}")
    if training.accuracies:
        parts.append(f"test accuracy {training.accuracies[-1]:.1%}")
    parts.append(f"{seconds:.1f} s")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
