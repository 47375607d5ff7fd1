"""Functions that autograd calls while it goes backward: what they see of a gradient is this rank's own.

Pure `ast`. Only a function that its file registers as such a hook and calls nowhere itself counts.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import FunctionNode, last_word, source_file
from distdoctor.recording.recording import SourceLine

# A wrapper hands averaged gradients back at the end of backward (torch's reducer, finalize_backward), after all of these.
REGISTERING = frozenset(
    {
        "register_hook",
        "register_post_accumulate_grad_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_multi_grad_hook",
    }
)


def hooked_at(sources: Mapping[str, str], site: SourceLine) -> SourceLine:
    """The line that registers the function around `site` as a hook of the backward pass; no line where none does, or where the
    file calls the function as well."""
    file = source_file(sources, site.path)
    if file is None:
        return SourceLine()
    around = [node for node in file.path_to(site.line) if isinstance(node, FunctionNode | ast.Lambda)]
    if not around:
        return SourceLine()
    name = getattr(around[-1], "name", "")
    calls = list(file.nodes(ast.Call))
    if name and any(last_word(call.func) == name for call in calls):
        return SourceLine()
    for call in calls:
        given = (*call.args, *(word.value for word in call.keywords))
        if last_word(call.func) in REGISTERING and any(
            one is around[-1] or (name and _is_named(one, name)) for one in given
        ):
            scope = file.function_at(call.lineno)
            return SourceLine(site.path, call.lineno, getattr(scope, "name", "<module>"))
    return SourceLine()


def _is_named(expression: ast.expr, name: str) -> bool:
    """`hook`, `self.hook` or `partial(hook, ...)`."""
    if isinstance(expression, ast.Call) and last_word(expression.func) == "partial" and expression.args:
        expression = expression.args[0]
    return isinstance(expression, ast.Name | ast.Attribute) and last_word(expression) == name
