"""Which key of a store a line waits for, and where such keys are set."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.store_keys import awaited_key, key_made_of
from distdoctor.recording.source_line import SourceLine

SOURCE = """
class Board:
    def post(self, key, **fields):
        self.store.set(key, json.dumps(fields))

    def read(self, key):
        return json.loads(self.store.get(key))

def decide(board, epoch, score):
    if score > 0.5:
        board.post(f"verdict/{epoch}", action="better")
        return "better"
    return "wait"

def settings(store, options, environ):
    return options.get("lr"), os.environ.get("HOME"), store.get
"""


def at(words: str) -> SourceLine:
    (number,) = [number for number, line in enumerate(SOURCE.splitlines(), 1) if words in line]
    return SourceLine("/job/train.py", number, "f")


def test_a_line_that_waits_for_a_key_shows_who_sets_such_keys() -> None:
    found = awaited_key({"/job/train.py": SOURCE}, at("self.store.get(key)"))

    assert found is not None
    key, setters = found
    assert key == "key"
    assert [line.line for line, _ in setters] == [at("self.store.set").line, at("board.post").line]


@pytest.mark.parametrize("words", ["options.get", "board.post", 'return "wait"'])
def test_other_lines_wait_for_no_key(words: str) -> None:
    assert awaited_key({"/job/train.py": SOURCE}, at(words)) is None


def test_the_name_of_a_key_is_followed_to_what_each_process_works_out_for_itself() -> None:
    lines = ["def ready(store, texts):", "    name = mark(texts)", "    store.wait([name])", ""]
    marks = ["def mark(texts):", "    return f'ready/{hash(texts)}'", ""]
    source = {"/job/train.py": "\n".join([*lines, *marks])}

    found = [(hop.line, hop.text) for hop in key_made_of(source, SourceLine("/job/train.py", 3, "ready"))]

    assert found == [(2, "mark(texts)"), (6, "f'ready/{hash(texts)}'")]
    assert (
        key_made_of(
            {"/job/train.py": "\n".join(lines).replace("mark(texts)", "'ready'")},
            SourceLine("/job/train.py", 3, "ready"),
        )
        == ()
    )
