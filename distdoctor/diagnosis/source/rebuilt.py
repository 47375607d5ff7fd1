"""What the user's source restores from a checkpoint and then makes anew, which throws away what was restored. Pure `ast`.

self.ema.set_state(checkpoint["ema"])
...
self.ema = EMATracker(self.model)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine

_MAKERS = ("__init__", "__post_init__", "setup", "build")  # they run before a load


def rebuilt_after(sources: Mapping[str, str], load: SourceLine, *, only: bool = False) -> SourceLine:
    """The one line that makes anew what the function of a load restores into an object, or `only` what is restored in the very
    line; else no line."""
    program = program_of(sources)
    loading = [s for s in program.scopes.values() if s.path == load.path and s.node is s.file.function_at(load.line)]
    restored = {name for scope in loading for name in _restored(scope, load.line if only else 0)}
    classes = {scope.class_name for scope in loading}
    found = [
        (scope, node)
        for scope in program.scopes.values()
        if scope.class_name in classes and not scope.name.startswith(_MAKERS)
        for node in scope.assigns
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(ast.unparse(target) in restored for target in node.targets)
        if scope not in loading or node.lineno > load.line
    ]
    if not found and not only:
        found = _made_again(loading, load, [s for s in program.scopes.values() if s.class_name in classes])
    if len(found) != 1:
        return SourceLine()
    scope, node = found[0]
    return scope.line(node)


def _made_again(
    loading: Sequence[Scope], load: SourceLine, of_classes: Sequence[Scope]
) -> list[tuple[Scope, ast.Assign]]:
    """What a constructor has made, and the function of a load makes once more behind it, by the same call."""
    makers = (scope for scope in of_classes if scope.name.startswith(_MAKERS))
    made = {one for scope in makers for one in map(_made_by, scope.assigns)} - {("", "")}
    return [
        (scope, node)
        for scope in loading
        for node in scope.assigns
        if isinstance(node, ast.Assign) and node.lineno > load.line and _made_by(node) in made
    ]


def _made_by(node: ast.AST) -> tuple[str, str]:
    """`self.ema` and `ModelEma` of `self.ema = ModelEma(net)`; ("", "") of what is no such statement."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return "", ""
    return ast.unparse(node.targets[0]), last_word(node.value.func)


def _restored(scope: Scope, line: int) -> set[str]:
    """`self.ema` of `self.ema.set_state(checkpoint["ema"])`; `line` 0: wherever that is."""
    return {
        ast.unparse(call.func.value)
        for call in scope.calls
        if not line or call.lineno <= line <= (call.end_lineno or line)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name | ast.Attribute)
        if any(isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant) for one in call.args)
    }
