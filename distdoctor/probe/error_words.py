"""An exception in a line, without secrets."""

from __future__ import annotations

from distdoctor.recording.trace.redaction import redacted

LONGEST = 2000  # characters
_PLAIN = (BaseException.__str__, KeyError.__str__, OSError.__str__)


def in_words(error: BaseException) -> str:
    """`KeyError: 'phone'`, of one that the interpreter is about to show: its own words are asked for."""
    return redacted(f"{type(error).__name__}: {error}"[:LONGEST]).replace("\0", " ")


def in_plain_words(error: BaseException) -> str:
    """The same of one that the program may yet handle: the type alone where code of the host's would have to find the words."""
    kind = type(error)
    plain = kind.__str__ in _PLAIN and all(type(one) in (str, int, float, bytes) for one in error.args)
    return in_words(error) if plain and error.args else kind.__name__
