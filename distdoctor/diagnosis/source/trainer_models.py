"""Models of which transformers' Trainer believes that they normalise their loss themselves. Pure `ast`.

Trainer (4.46 and later) leaves the division by the micro-steps to a model whose `forward` takes `**kwargs`, and hands it
`num_items_in_batch` for that, unless the model says `accepts_loss_kwargs = False`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import FunctionNode, source_file
from distdoctor.recording.recording import SourceLine

COUNT, SAYS_NO = "num_items_in_batch", "accepts_loss_kwargs"


def forward_that_takes_the_count(sources: Mapping[str, str]) -> SourceLine:
    """The one `forward` of a program with a Trainer that takes `**kwargs` and never looks for the count; no line else."""
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    if not any("transformers" in file.text and "Trainer" in file.text for file in files):
        return SourceLine()
    if any(word in file.text for file in files for word in (COUNT, SAYS_NO)):
        return SourceLine()
    found = [
        SourceLine(file.path, method.lineno, "forward")
        for file in files
        for owner in file.nodes(ast.ClassDef)
        for method in owner.body
        if isinstance(method, FunctionNode) and method.name == "forward" and method.args.kwarg is not None
    ]
    return found[0] if len(found) == 1 else SourceLine()
