"""Free the graph with its step."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

LET_THE_GRAPH_GO = Remedy(
    slug="let-the-graph-go",
    what="Leave out retain_graph=True where nobody asks a second time, and compute under no_grad what is not trained.",
    how="""loss.backward()
with torch.no_grad():
    target = teacher(inputs)""",
    effect="The activations of one step are gone before those of the next are made.",
    safety="changes no result; a second backward through a freed graph raises an error, silently wrong it never is",
    source="torch.autograd.backward",
)
