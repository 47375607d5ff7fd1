"""The files for SLURM, Kubernetes and Ray are whole, and every command in them is one that distdoctor understands."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import click
import yaml

from distdoctor.attach import ways
from distdoctor.cli.main import COMMANDS
from distdoctor.cli.run import COMMAND
from distdoctor.cli.torchrun_options import torchrun_arguments
from distdoctor.launch.torchrun_arguments import parse

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "clusters"
SBATCH, POD, RAY = FOLDER / "train.sbatch", FOLDER / "pytorchjob.yaml", FOLDER / "ray_train.py"


def understood(words: list[str]) -> click.Context:
    """`distdoctor WORDS`, parsed as far as it goes without doing it."""
    module, _, attribute = COMMANDS[words[0]].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command.make_context(words[0], words[1:])


def launched(words: list[str]) -> tuple[str, str, str]:
    """Script, number of nodes and endpoint, as torchrun's own parser understands them."""
    context = understood(words)
    found = parse(torchrun_arguments(context.params), context.params["script"])
    assert (ROOT / found.training_script).is_file()
    return found.training_script, found.nnodes, found.rdzv_endpoint


def commands_in(text: str) -> list[list[str]]:
    """Every `distdoctor ...` of a file, continued lines joined, without its comments' marks."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"distdoctor ((?:run|hang-dump|examine)\b.*)", joined)
    return [shlex.split(line, comments=True) for line in found]


def test_the_batch_script_is_bash_and_its_commands_are_understood() -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    asked, started = commands_in(SBATCH.read_text())

    assert understood(asked).params["target"] == "srun:JOBID"
    assert launched(started) == ("examples/early_stopping_healthy.py", "$SLURM_NNODES", "$first:29400")


def test_the_batch_script_hands_the_launcher_what_slurm_says(tmp_path: Path) -> None:
    for name, body in {"scontrol": "printf 'gpu01\\ngpu02\\n'", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "gpu[01-02]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "4711"}
    done = subprocess.run(
        ["bash", str(SBATCH)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **slurm},
        capture_output=True,
        text=True,
        check=True,
    )

    words = done.stdout.splitlines()
    assert launched(words[words.index("distdoctor") + 1 :]) == (
        "examples/early_stopping_healthy.py",
        "2",
        "gpu01:29400",
    )
    assert "runs/4711" in words


def test_the_pods_run_the_launcher_with_options_that_it_has() -> None:
    document = yaml.safe_load(POD.read_text())
    replicas = document["spec"]["pytorchReplicaSpecs"]
    nodes = sum(one["replicas"] for one in replicas.values())

    for one in replicas.values():
        (container,) = one["template"]["spec"]["containers"]
        script, nnodes, endpoint = launched(container["command"][1:])
        assert container["command"][0] == "distdoctor"
        assert (script, nnodes, endpoint) == ("examples/early_stopping_healthy.py", str(nodes), "$(MASTER_ADDR):29400")
        assert {"POD_IP"} <= {variable["name"] for variable in container["env"]}
        assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    (asked,) = commands_in(POD.read_text())
    selector = understood(asked).params["target"].partition(":")[2]
    assert ways._SELECTOR.fullmatch(selector)
    assert selector == f"training.kubeflow.org/job-name={document['metadata']['name']}"


def test_the_ray_script_is_python_and_its_commands_are_understood() -> None:
    tree = ast.parse(RAY.read_text())
    for words in commands_in(ast.get_docstring(tree) or ""):
        context = understood(words)
        assert context.meta[COMMAND] == ("python", "examples/clusters/ray_train.py")


def test_the_table_shows_commands_that_are_understood() -> None:
    for words in re.findall(r"`distdoctor (hang-dump [^`]*|run [^`]*)`", (ROOT / "examples" / "README.md").read_text()):
        assert understood(shlex.split(words))
