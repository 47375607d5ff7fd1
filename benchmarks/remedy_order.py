"""What remedies save, predicted and measured by a re-run: how far apart, and is the order of remedies the same?

    python benchmarks/remedy_order.py [--models mlp,gpt,convnet] [--ways ddp,fsdp] [--batch 64] [--ranks 2] [--seconds 900]

Every remedy against memory that `advise --try` knows is tried on every model and strategy, each against the training without it.
Two remedies of one training make a pair; its order is right when the one that was predicted to save more does. Pairs whose
measured savings are less than 1 MiB, or 2 % of the peak where that is less, apart are ties and are left out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass

from distdoctor import plugins
from distdoctor.errors import CouldNotLook, WrongUse
from distdoctor.planning import memory_remedies, real_steps
from distdoctor.planning.prediction import predict
from distdoctor.plugins import Plugins
from distdoctor.workloads.request import TrainingRequest, make_request

PLANT = "distdoctor.planning.measured_memory:plant"
STEPS = 5
MIB = 1 << 20
TIE_BYTES, TIE_SHARE = MIB, 0.02
TELLING = 0.01  # of the peak: smaller savings are noise of gloo's threads
# Traffic only, another allocator only, or a strategy of its own.
NOT_MEMORY = ("no-sync", "expand-segments")


@dataclass(frozen=True)
class Saving:
    """Of one remedy, in bytes; `whole` is the measured peak without it."""

    remedy: str
    predicted: int
    measured: int
    whole: int

    @property
    def apart(self) -> float:
        return abs(self.predicted - self.measured) / abs(self.measured)


class Measured:
    """Peaks of trainings, each predicted and trained once."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.known: dict[str, tuple[int, int]] = {}

    def peaks(self, request: TrainingRequest) -> tuple[int, int]:
        """(predicted, measured) bytes of the rank that needs most."""
        key = request.to_json()
        if key not in self.known:
            predicted = predict(request, self.ranks).total_bytes
            self.known[key] = predicted, real_steps.train(request, self.ranks, PLANT, steps=STEPS).peak_bytes
        return self.known[key]


def savings(request: TrainingRequest, measured: Measured, found: Plugins) -> list[Saving]:
    """Of all remedies that can be tried on this training."""
    rows = []
    for slug in memory_remedies.CURES:
        if slug in NOT_MEMORY:
            continue
        try:
            without, cured = memory_remedies.tried(slug, request, measured.ranks, found.strategies)
            before, after = measured.peaks(without), measured.peaks(cured)
        except (WrongUse, CouldNotLook) as trouble:
            print(f"    {slug:26} not tried: {str(trouble)[:80]}", flush=True)
            continue
        row = Saving(slug, before[0] - after[0], before[1] - after[1], before[1])
        rows.append(row)
        print(
            f"    {slug:26}{row.predicted / MIB:10.3f}{row.measured / MIB:10.3f} MiB of {row.whole / MIB:.2f}",
            flush=True,
        )
    return rows


def pairs(rows: list[Saving]) -> list[tuple[Saving, Saving]]:
    """Remedies of one training whose measured savings differ, the one that saves more first."""
    found = []
    for one, other in itertools.combinations(rows, 2):
        tie = min(TIE_BYTES, TIE_SHARE * max(one.whole, other.whole))
        if abs(one.measured - other.measured) >= tie:
            found.append((one, other) if one.measured > other.measured else (other, one))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--models", default="mlp,gpt,convnet")
    parser.add_argument("--ways", default="ddp,fsdp")
    parser.add_argument("--seconds", type=float, default=900, help="begin no other training after this long")
    options = parser.parse_args()
    found, measured, began = plugins.load(), Measured(options.ranks), time.monotonic()
    ordered: list[tuple[Saving, Saving]] = []
    telling: list[Saving] = []
    silent: list[Saving] = []
    for model, way in itertools.product(options.models.split(","), options.ways.split(",")):
        if time.monotonic() - began > options.seconds:
            break
        print(f"{way}, {model}, batch {options.batch}, {options.ranks} ranks: saving predicted, measured", flush=True)
        request = make_request(
            found.strategies[way],
            {"model": model, "batch_size": options.batch},
            models=found.models.values(),
            sources=found.data.values(),
            backend="gloo",
        )
        rows = savings(request, measured, found)
        ordered += pairs(rows)
        telling += [row for row in rows if abs(row.measured) > TELLING * row.whole]
        silent += [row for row in rows if abs(row.measured) <= TELLING * row.whole]
    report(ordered, telling, silent)


def report(ordered: list[tuple[Saving, Saving]], telling: list[Saving], silent: list[Saving]) -> None:
    """The three answers."""
    wrong = [(more, less) for more, less in ordered if more.predicted <= less.predicted]
    if ordered:
        right = len(ordered) - len(wrong)
        print(f"order: {right} of {len(ordered)} pairs as measured, {right / len(ordered):.1%}")
    for more, less in wrong:
        print(
            f"  {more.remedy} saves {more.measured / MIB:.3f} MiB, {less.remedy} {less.measured / MIB:.3f}; predicted "
            f"{more.predicted / MIB:.3f} and {less.predicted / MIB:.3f}"
        )
    if telling:
        apart = sorted(row.apart for row in telling)
        close = sum(one <= 0.10 for one in apart)
        print(
            f"savings of more than {TELLING:.0%} of the peak: {close} of {len(apart)} predicted within 10 %, "
            f"median {statistics.median(apart):.2%} apart, worst {apart[-1]:.1%}"
        )
    quiet = sum(abs(row.predicted) <= TELLING * row.whole for row in silent)
    print(f"smaller savings: {quiet} of {len(silent)} predicted to be small")


if __name__ == "__main__":
    main()
