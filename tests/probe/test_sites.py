"""Which files are the user's own, and which were installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from distdoctor.probe import sites


@pytest.mark.job  # runs pip
def test_what_pip_installed_into_a_folder_of_its_own_is_no_users_file(tmp_path: Path) -> None:
    libraries, project = tmp_path / "libraries", tmp_path / "project"
    for folder in (libraries / "tool", libraries / "tool-1.0.dist-info", project):
        folder.mkdir(parents=True)
    script = project / "train.py"
    script.write_text(
        "import sys\nfrom distdoctor.probe.sites import belongs_to_user\n"
        "print(*(belongs_to_user(path) for path in sys.argv[1:]))\n"
    )
    paths = [str(libraries / "tool" / "core.py"), str(script), str(project / "helpers.py")]
    env = {**os.environ, "PYTHONPATH": str(libraries)}

    done = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True, env=env, check=True)

    assert done.stdout.split() == ["False", "True", "True"]


def test_the_line_that_calls_a_model_is_outside_of_the_model() -> None:
    seen: list[str] = []

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(sites.calling_site({id(model)}))
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    model = Model()

    def through_forward() -> None:
        model(torch.ones(1))

    def through_a_method() -> None:
        model.loss(torch.ones(1))

    through_forward()
    through_a_method()
    seen.append(sites.calling_site(()))

    assert [text.split("\0")[2] for text in seen[:2]] == ["through_forward", "through_a_method"]
    assert "test_the_line" in seen[2]
