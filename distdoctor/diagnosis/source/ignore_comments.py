"""Comments in which the user accepts a finding: `# distdoctor: ignore[CODE, slug] -- reason`, in upper or lower case."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

_COMMENT = re.compile(r"#\s*distdoctor:\s*ignore\[([A-Za-z0-9_,\s-]+)\]", re.I)


def accepted_on(line: str) -> list[str]:
    """The codes and slugs that a line accepts, as they are written."""
    found = _COMMENT.search(line)
    return [word.strip() for word in found[1].split(",") if word.strip()] if found else []


def ignore_comments(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each such comment of a source file: its line, and what it accepts. Nothing after what is no Python."""
    if "distdoctor:" not in text.lower():
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (names := accepted_on(token.string)):
                yield token.start[0], names
    except (tokenize.TokenError, SyntaxError):
        return
