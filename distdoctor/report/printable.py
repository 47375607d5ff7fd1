"""What a job's own words may do to a terminal or a CI log: nothing. They are shown, character by character."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, marks and overrides of the direction of writing, line separators, the BOM, half surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_COMMAND = re.compile(r"(?m)^(\s*)(::|##\[)")  # of GitHub Actions and Azure Pipelines, wherever a line begins with it


def printable(text: str) -> str:
    """`text` with every character that would act instead of being seen as `\\xNN`, and no line that a CI server obeys."""
    return _COMMAND.sub(lambda found: f"{found[1]}\\x{ord(found[2][0]):02x}{found[2][1:]}", shown(text))


def shown(text: str) -> str:
    """The same, for documents in which a line may begin as it likes."""
    return _UNSEEN.sub(lambda found: _escape(found[0]), text)


def one_line(text: str) -> str:
    """The same, where the text has to stay on its line."""
    return shown(text).replace("\n", "\\x0a")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
