"""Pages of the handbook: each is the docstring of the file that it is about."""

from __future__ import annotations

import ast
import inspect
import sys


def page_of(module: str) -> str:
    """The docstring of a module that is loaded, also under `python -OO`, which drops docstrings; "" where it has none."""
    loaded = sys.modules[module]
    if loaded.__doc__ is None and sys.flags.optimize > 1:
        try:
            return ast.get_docstring(ast.parse(inspect.getsource(loaded))) or ""
        except (OSError, TypeError):  # no source was installed
            return ""
    return inspect.cleandoc(loaded.__doc__ or "")


def file_of(code: str) -> str:
    """The file whose docstring is the page of that code, "" where none of the modules that are loaded has it.

    A rule of lint has a page of its own for the code of a check: where both are loaded it is the check's.
    """
    pages = [
        vars(module)
        for module in list(sys.modules.values())
        if (vars(module).get("__doc__") or "").lstrip().startswith(f"{code} ")
    ]
    of_a_check = [page for page in pages if ".lint." not in page["__name__"]]
    return next((str(page.get("__file__") or "") for page in of_a_check + pages), "")
