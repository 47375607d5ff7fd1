"""Names are followed to functions and to where values were made, within a file and across files."""

from __future__ import annotations

import ast
import time

import pytest

from distdoctor.diagnosis.source.source_file import parse
from distdoctor.lint.examine import examine
from distdoctor.lint.program import DDP, ParsedFiles
from distdoctor.lint.rank_conditions import depends_on_rank

MEET = "import torch.distributed as dist\ndef meet():\n    dist.barrier()\n"


def codes(**files: str) -> list[str]:
    """The codes seen in files, given as path_with_underscores__for_slashes=text."""
    return [f.code for f in examine({f"{name.replace('__', '/')}.py": text for name, text in files.items()}).findings]


@pytest.mark.parametrize(
    "importing",
    [
        "from pkg.comm import meet\ndef f(rank):\n    if rank == 0: meet()\n",
        "from .comm import meet\ndef f(rank):\n    if rank == 0: meet()\n",
        "from . import comm\ndef f(rank):\n    if rank == 0: comm.meet()\n",
        "import pkg.comm as c\ndef f(rank):\n    if rank == 0: c.meet()\n",
        "from pkg import comm\ndef f(rank):\n    if rank == 0: comm.meet()\n",
    ],
)
def test_a_collective_in_a_helper_of_another_file_is_found_through_each_kind_of_import(importing: str) -> None:
    assert codes(pkg__comm=MEET, pkg__train="# torch\n" + importing) == ["DD112"]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("rank == 0", 2),
        ("dist.get_rank() == 0", 2),
        ("rank in (0, 1)", 1),  # nobody answers the second one
        ("rank != 0", 0),
        ("rank % 2", 0),
        ("rank == source", 0),
    ],
)
def test_a_second_barrier_answers_the_first_if_ranks_reach_it_that_skip_the_first(other: str, found: int) -> None:
    train = f"""import torch.distributed as dist
def save(rank, source):
    if rank == 0:
        dist.barrier()
    write()
    if {other}:
        dist.barrier()
"""

    assert codes(train=train) == ["DD112"] * found


def test_a_helper_that_a_package_hands_on_is_followed() -> None:
    train = "import torch\nfrom pkg import meet\ndef f(rank):\n    if rank == 0:\n        meet()\n"

    files = {"pkg/__init__.py": "from .comm import meet\n", "pkg/comm.py": MEET, "train.py": train}

    assert [finding.code for finding in examine(files).findings] == ["DD112"]


def test_many_ways_between_functions_that_issue_nothing_take_no_time() -> None:
    functions = [
        f"def f{n}(x):\n" + "".join(f"    f{n + more}(x)\n" for more in range(1, 9)) + "    x.save()\n"
        for n in range(80)
    ]
    train = "import torch\nfrom comm import meet\ndef main(rank):\n    f0(rank)\n    if rank == 0:\n        meet()\n"
    began = time.thread_time()

    assert codes(comm=MEET, train=train + "".join(functions)) == ["DD112"]
    assert time.thread_time() - began < 3  # where all ways are followed it has not ended after 36 s


def test_what_has_no_word_of_torch_need_not_be_python() -> None:
    files = {"pkg/__init__.py": "import old\nprint old\n", "train.py": "import torch\nprint torch\n"}

    assert [one.partition(":")[0] for one in examine(files).unread] == ["train.py"]


def test_a_method_of_a_base_class_in_another_file_is_followed() -> None:
    base = "import torch.distributed as dist\nclass Base:\n    def meet(self):\n        dist.barrier()\n"
    own = "import torch\nfrom base import Base\nclass T(Base):\n    def f(self):\n        if self.rank == 0:\n"

    assert codes(base=base, train=own + "            self.meet()\n") == ["DD112"]


def test_functions_that_call_each_other_come_to_an_end() -> None:
    loop = "import torch\ndef a(n):\n    return b(n)\ndef b(n):\n    return a(n)\nx = a(1)\nx = x\n"

    assert codes(train=loop) == []


def test_a_model_is_known_through_a_field_a_parameter_and_a_return() -> None:
    text = (
        "import torch\n"
        "def wrap(net): return torch.nn.parallel.DistributedDataParallel(net)\n"
        "def train(model): return model\n"
        "class T:\n"
        "    def __init__(self, net): self.model = wrap(net)\n"
        "    def go(self): train(self.model)\n"
    )
    file = parse("train.py", text)
    program = ParsedFiles([file])

    assert program.kinds(ast.parse("model", mode="eval").body, file.module.functions["train"]) == {DDP}


@pytest.mark.parametrize(
    ("test", "on_rank"),
    [
        ("rank == 0", True),
        ("dist.get_rank() == 0", True),
        ("int(os.environ['RANK']) == 0", True),
        ("args.local_rank in [-1, 0]", True),
        ("not is_main_process()", True),
        ("rank == src", True),
        ("step % 10 == 0 and rank == 0", True),
        ("rank < 4", True),
        ("args.local_rank != -1", False),
        ("rank >= 0", False),
        ("rank is not None", False),
        ("lora_rank > 4", False),
        ("matrix_rank(x) == 2", False),
        ("tp_rank == 0", False),
        ("world_size > 1", False),
        ("args.distributed", False),
    ],
)
def test_what_a_condition_says_about_the_rank(test: str, on_rank: bool) -> None:
    file = parse("train.py", f"import torch\nif {test}:\n    pass\n")
    condition = next(one for one in ast.walk(file.tree) if isinstance(one, ast.If)).test

    assert depends_on_rank(condition, file.module, ParsedFiles([file])) is on_rank


def test_the_variable_of_a_loop_over_ranks_is_not_the_rank() -> None:
    text = (
        "import torch.distributed as dist\ndef f():\n    for rank in range(4):\n        if rank == 0: dist.barrier()\n"
    )

    assert codes(train=text) == []


def test_where_a_value_was_made_does_not_depend_on_what_was_asked_first() -> None:
    text = """from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import FullyShardedDataParallel
def wrap(args, model):
    if args.sharded:
        model = FullyShardedDataParallel(model)
    else:
        model = DistributedDataParallel(model)
    return model, args.device
def main(args, net):
    model = net
    model, device = wrap(args, model)
"""
    file = parse("train.py", text)
    program, name = ParsedFiles([file]), ast.parse("model", mode="eval").body
    wrap, main = file.module.functions["wrap"], file.module.functions["main"]

    assert program.kinds(name, wrap) == {"ddp", "fsdp"}
    assert program.kinds(name, main) == {"ddp", "fsdp"}


def test_where_the_search_ends_one_of_two_wrappers_is_not_taken_for_the_only_one() -> None:
    text = """from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import FullyShardedDataParallel
def wrap(args, model):
    if args.sharded:
        model = FullyShardedDataParallel(model)
    else:
        model = DistributedDataParallel(model)
    return model
def a0(args, net):
    model = wrap(args, net)
    a1(model)
"""
    text += "".join(f"def a{n}(model):\n    a{n + 1}(model)\n" for n in range(1, 7))
    file = parse("train.py", text)
    program, name = ParsedFiles([file]), ast.parse("model", mode="eval").body

    seen = [program.kinds(name, file.module.functions[f"a{n}"]) for n in range(7)]

    assert {"ddp", "fsdp"} in seen
    assert set() in seen
    assert all(one in (set(), {"ddp", "fsdp"}) for one in seen)
