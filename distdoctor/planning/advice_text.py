"""Advice for people: the answer first, then the plans side by side, what each remedy saves, and how it was computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distdoctor.diagnosis.memory.memory import mib
from distdoctor.planning.advice import Advice, Plan
from distdoctor.planning.prediction import Prediction

COLUMNS = ("parameters", "gradients", "optimizer", "activations", "communication")
MIB = 1 << 20


def render(advice: Advice) -> str:
    """The whole advice as text."""
    lines = [answer(advice), "", *_table(advice), "", *_savings(advice), *_arithmetic(advice)]
    lines += [f"note: {note}" for note in advice.notes]
    return "\n".join(lines) + "\n"


def answer(advice: Advice) -> str:
    """One line: what to do, and by how much it fits."""
    machine = f"{advice.machine.count} x {mib(advice.machine.capacity)}"
    best = advice.best
    if best is None or best.prediction is None:
        least = next(plan for plan in advice.plans if plan.prediction is not None)
        assert least.prediction is not None
        return (
            f"nothing fits {machine} with a batch of {advice.batch}: {least.name} needs the least, "
            f"{mib(least.prediction.peak.bytes)} of {mib(advice.machine.usable)} per device"
        )
    return (
        f"{best.name} fits {machine} with a batch of {advice.batch}: {mib(best.prediction.peak.bytes)} of "
        f"{mib(advice.machine.usable)} per device, at most a batch of {best.largest}"
    )


def _table(advice: Advice) -> list[str]:
    head = ("plan", "peak MiB", *COLUMNS, "other", "host MiB", "fits", "largest batch", "sent MiB", "est. step")
    rows: list[tuple[str, ...]] = [head]
    for plan in advice.plans:
        if plan.prediction is None:
            continue
        rows.append((plan.name, *_numbers(plan.prediction), *_verdict(plan)))
    lines = _aligned(rows)
    return lines + [f"{plan.name}: {plan.reason}" for plan in advice.plans if plan.reason]


def _numbers(prediction: Prediction) -> list[str]:
    peak = prediction.peak
    named = [peak.categories[name] for name in COLUMNS]
    return [_in_mib(size) for size in (peak.bytes, *named, peak.bytes - sum(named), peak.host_bytes)]


def _verdict(plan: Plan) -> list[str]:
    assert plan.prediction is not None
    sent = _in_mib(plan.prediction.sent_bytes)
    return ["yes" if plan.fits else "no", str(plan.largest) if plan.largest else "none", sent, _seconds(plan.seconds)]


def _savings(advice: Advice) -> list[str]:
    """What each remedy takes off, against the plan that lacks just it."""
    by_name = {plan.name: plan for plan in advice.plans if plan.prediction is not None}
    lines = []
    for name, plan in by_name.items():
        shorter, _, remedy = name.rpartition(" + ")
        against = by_name.get(shorter) if remedy else by_name.get("ddp") if name == "fsdp" else None
        if against is None or against.prediction is None or plan.prediction is None:
            continue
        saved = against.prediction.peak.bytes - plan.prediction.peak.bytes
        cost = [f"{_seconds(plan.recompute_seconds)} of recomputation"] if plan.recompute_seconds else []
        sent = plan.prediction.sent_bytes - against.prediction.sent_bytes
        cost += (
            [f"{'+' if sent > 0 else '-'}{mib(abs(sent))} sent"]
            if abs(sent) > 0.01 * against.prediction.sent_bytes
            else []
        )
        cost += [f"{_seconds(plan.host_seconds)} on the host"] if plan.host_seconds > against.host_seconds else []
        verb = "saves" if saved >= 0 else "costs"
        lines.append(
            f"  {remedy or name}, after {against.name}: {verb} {mib(abs(saved))}; {', '.join(cost) or 'no cost'}"
        )
    return [f"what each remedy changes, per device and step (batch {advice.batch})", *lines, ""] if lines else []


def _arithmetic(advice: Advice) -> list[str]:
    best = advice.best or next(plan for plan in advice.plans if plan.prediction is not None)
    assert best.prediction is not None
    peak, speeds, machine = best.prediction.peak, advice.speeds, advice.machine
    parts = [f"{name} {_in_mib(size)}" for name, size in peak.categories.items() if size >= MIB // 10]
    tflops = speeds.tflops(best.request.precision)
    lines = [
        f"how it was computed ({best.name})",
        f"  peak       {' + '.join(parts) or 'all below 0.1'} = {_in_mib(peak.bytes)} MiB, in the {peak.phase} phase of the step",
        f"  model      {advice.parameters:,} parameters; this rank keeps {mib(best.prediction.parameter_bytes)} of them",
        f"  usable     {mib(machine.capacity)} x {1 - machine.headroom:.2f} = {mib(machine.usable)} "
        f"(headroom for context, workspaces, NCCL and fragmentation: an assumption, --headroom)",
        f"  arithmetic {best.prediction.flops:.3g} FLOP / {tflops:g} TFLOP/s (assumed, --tflops) = "
        f"{_seconds(best.compute_seconds)}",
        f"  sent       {mib(best.prediction.sent_bytes)} by ring / {speeds.link_gb:g} GB/s (assumed, --link-gb) = "
        f"{_seconds(best.link_seconds)}, if nothing overlaps",
    ]
    if best.prediction.setup_bytes > machine.usable:
        lines.append(
            f"  setup      the whole model, {mib(best.prediction.setup_bytes)}, does not fit a device before it is sharded: "
            "make it on torch.device('meta') and load the shards"
        )
    return lines


def _in_mib(size: float) -> str:
    return f"{size / MIB:,.1f}" if size < 1000 * MIB else f"{size / MIB:,.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_line(row, widths) for row in rows]


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if not place else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
