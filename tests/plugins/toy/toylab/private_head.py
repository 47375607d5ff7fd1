"""
LAB003 private-head: the head that each rank trains for itself takes part in the shared optimizer.

What it means    In this lab a module called `head` is meant to differ between ranks, and has an optimizer of its own.
Why it hurts     The shared optimizer steps it with gradients that nobody averages.
How we know      Of the gradients that differ between replicas, all belong to `head`.
What to do       Give `head` to the optimizer of its rank.
When it is fine  Never.
Source           The models of this lab.
"""

from collections.abc import Iterator

from distdoctor.plugin_api import ERROR, Finding, Prescription, Recording, Remedy, ReplicaDivergences, check
from distdoctor.testing.gradients import trained_job

OF_ITS_RANK = Remedy(
    "optimizer-of-its-rank", "Give `head` to the optimizer of its rank.", safety="The model learns otherwise."
)


@check("LAB003", "private-head", severity=ERROR, family="replicas", specificity=75)
def examine(divergences: ReplicaDivergences) -> Iterator[Finding]:
    for divergence in divergences.found:
        if divergence.what == "gradients" and all(one.name.startswith("head") for one in divergence.differences):
            yield Finding(
                title=f"step {divergence.step}: the shared optimizer steps `head`",
                ranks=divergence.odd,
                place=divergence.site,
                at_ns=divergence.at_ns,
                explains=(divergence.key,),
                why="of the gradients that differ, all belong to `head`",
                prescriptions=(Prescription(OF_ITS_RANK.slug),),
            )


def sick() -> Recording:
    job = trained_job(3).initial().step()
    return job.step(grads={1: 1}, params={1: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    """Something else differs as well."""
    job = trained_job(3).initial().step()
    return job.step(grads={1: 1}, params={1: 1}, names=["head.weight", "body.weight"]).recording()
