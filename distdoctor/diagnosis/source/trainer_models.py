"""Models of which transformers' Trainer believes that they normalise their loss themselves. Pure `ast`.

Trainer (4.46 and later) leaves the division by the micro-steps to a model whose `forward` takes `**kwargs`, and hands it
`num_items_in_batch` for that, unless the model says `accepts_loss_kwargs = False`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import FunctionNode, last_word, source_file
from distdoctor.recording.recording import SourceLine

LOSS = "compute_loss"
COUNT, SAYS_NO = "num_items_in_batch", "accepts_loss_kwargs"


def loss_that_ignores_the_count(sources: Mapping[str, str]) -> SourceLine:
    """Where the one `compute_loss` of a Trainer of the program's own hands on its loss, if it is given the count and never reads
    it; no line else. Trainer divides only where it believes that neither it nor the model does."""
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    if any(SAYS_NO in file.text for file in files):
        return SourceLine()
    methods = [
        (file, method)
        for file in files
        for owner in file.nodes(ast.ClassDef)
        for method in owner.body
        if any("Trainer" in last_word(base) for base in owner.bases)
        and isinstance(method, FunctionNode)
        and method.name == LOSS
    ]
    if len(methods) != 1:
        return SourceLine()
    file, method = methods[0]
    given = COUNT in {one.arg for one in (*method.args.args, *method.args.kwonlyargs)}
    reads = any(isinstance(one, ast.Name) and one.id == COUNT for one in ast.walk(method))
    hands_on = any(last_word(call.func) == LOSS for call in ast.walk(method) if isinstance(call, ast.Call))
    returned = [one for one in ast.walk(method) if isinstance(one, ast.Return) and one.value is not None]
    if not given or reads or hands_on or not returned:
        return SourceLine()
    return SourceLine(file.path, max(one.lineno for one in returned), LOSS)


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
