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

from distdoctor.plugin_api import ERROR, Finding, ReplicaDivergences, check


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
            )
