"""Whether a line stands in the forward of a module or of an autograd.Function. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import FunctionNode, source_file
from distdoctor.recording.source_line import SourceLine


def is_in_forward(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether the function of a line is the `forward` of a class that extends another one."""
    file = source_file(sources, site.path) if site.function == "forward" else None
    path = file.path_to(site.line) if file is not None else []
    inner = [node for node in path if isinstance(node, FunctionNode | ast.ClassDef)]
    return len(inner) > 1 and isinstance(inner[-2], ast.ClassDef) and bool(inner[-2].bases)
