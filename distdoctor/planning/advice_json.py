"""Advice for programs: one JSON document, all sizes in bytes and all times in seconds."""

from __future__ import annotations

import json

from distdoctor.planning.advice import Advice, Plan
from distdoctor.planning.advice_text import answer

SCHEMA_VERSION = 1


def render(advice: Advice) -> str:
    """The document; its plans in the order of the advice."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "answer": answer(advice),
        "machine": {
            "devices": advice.machine.count,
            "bytes": advice.machine.capacity,
            "usable_bytes": advice.machine.usable,
        },
        "model": advice.model,
        "parameters": advice.parameters,
        "batch_size": advice.batch,
        "plans": [_plan(plan) for plan in advice.plans],
        "notes": list(advice.notes),
    }
    return json.dumps(document, indent=1) + "\n"


def _plan(plan: Plan) -> dict[str, object]:
    found: dict[str, object] = {
        "name": plan.name,
        "strategy": plan.request.strategy,
        "checkpoint_activations": plan.request.checkpoint_activations,
        "offload": plan.request.offload,
        "accumulate": plan.request.accumulate,
        "precision": plan.request.precision or "fp32",
        "options": dict(plan.request.options),
        "fits": plan.fits,
    }
    if plan.prediction is None:
        return {**found, "reason": plan.reason}
    peak = plan.prediction.peak
    return {
        **found,
        "peak_bytes": peak.bytes,
        "peak_phase": peak.phase,
        "categories": peak.categories,
        "host_bytes": peak.host_bytes,
        "setup_bytes": plan.prediction.setup_bytes,
        "largest_batch": plan.largest,
        "flops": plan.prediction.flops,
        "sent_bytes": plan.prediction.sent_bytes,
        "seconds": {
            "arithmetic": plan.compute_seconds,
            "of_it_recomputation": plan.recompute_seconds,
            "link": plan.link_seconds,
            "host": plan.host_seconds,
            "together": plan.seconds,
        },
    }
