"""A real kernel: findings name the cells as the notebook shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.job

CELLS = (
    "import distdoctor, torch\nimport torch.distributed as dist",
    "def train(loader):\n    model = torch.nn.Linear(4, 1)\n    for batch in loader:\n        model(batch).sum().backward()\n",
    """with distdoctor.watch("recorded", quiet=True) as watched:
    train([torch.ones(2, 4)])
    try:
        with watched:
            torch.ones(3) @ torch.ones(4)
    except RuntimeError:
        pass
""",
    "watched.diagnose()",
)


def test_findings_name_the_cell_and_quote_its_line(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])

    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    (shown,) = book.cells[3].outputs
    assert "<iframe" in shown.data["text/html"]
    said = shown.data["text/plain"]  # as IPython has it at its prompt
    assert "In [3], line 5 <module>" in said, said
    assert "> 5 |             torch.ones(3) @ torch.ones(4)" in said, said
    assert "ipykernel_" not in said
