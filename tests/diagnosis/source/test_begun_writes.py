"""Where a thread is given a checkpoint to write, where a pointer is written, and where hooks are registered again and again."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.begun_writes import file_opened, thread_begun
from distdoctor.diagnosis.source.keeping_line import hooks_registered_again
from distdoctor.recording.source_line import SourceLine

SAVER = """class Saver:
    def write(self, state, path):
        torch.save(state, path)

    def save(self, state):
        self.thread = threading.Thread(target=self.write, args=(state, "a.pt"), daemon=True)
        self.thread.start()
        pointer = os.path.join(self.folder, "latest.json")
        with open(pointer, "w") as file:
            json.dump({"file": "a.pt"}, file)

    def load(self):
        return json.load(open(os.path.join(self.folder, "latest.json")))

    def note(self):
        (self.folder / "notes.txt").write_text("latest.json")
"""


def test_the_line_that_hands_a_function_to_a_thread_is_found_from_inside_of_it() -> None:
    sources = {"saver.py": SAVER}

    assert thread_begun(sources, SourceLine("saver.py", 3, "write")) == SourceLine("saver.py", 6, "save")
    assert not thread_begun(sources, SourceLine("saver.py", 13, "load"))  # which no thread runs
    assert not thread_begun({"saver.py": SAVER + SAVER.replace("Saver", "Other")}, SourceLine("saver.py", 3, "write"))


@pytest.mark.parametrize(("path", "line"), [("/job/latest.json", 9), ("/job/notes.txt", 16), ("/job/other.json", 0)])
def test_the_line_that_opens_a_file_for_writing_is_found_by_its_name(path: str, line: int) -> None:
    assert file_opened({"saver.py": SAVER}, path).line == line


HOOKS = """def watch(model):
    for block in model:
        block.register_forward_hook(note)


def train(model):
    {before}
    for x in data:
        {inside}
        step(model, x)
"""


@pytest.mark.parametrize(("before", "inside", "lines"), [("pass", "watch(model)", [3]), ("watch(model)", "pass", [])])
def test_hooks_count_as_registered_again_only_where_a_loop_calls_the_function(
    before: str, inside: str, lines: list[int]
) -> None:
    found = hooks_registered_again({"train.py": HOOKS.format(before=before, inside=inside)})

    assert [one.line for one in found] == lines
