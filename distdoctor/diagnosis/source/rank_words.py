"""What people call the number of a process, and the question whether it is the main one. Names are hints and prove nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.diagnosis.source.source_file import last_word

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_ZERO_ONLY = re.compile(
    r"rank_?zero_?only|main_process_only|on_main_process|on_local_main_process|master_only|only_main"
)

_WHOSE = r"(?:my|global|world|dist|distributed|ddp|process|proc|current|cur|get)"
_GLOBAL = re.compile(rf"^_*(?:{_WHOSE}_*)*rank_*(?:id|idx|index)?$|^process_index$", re.I)
_OF_THE_HOST = re.compile(r"^_*(?:(?:my|get)_+)?local_*(?:rank_*(?:id|idx|index)?|process_index)$", re.I)
_SOME = re.compile(r"(?:^|_)rank(?:_id|_idx|_index)?$|^(?:local_)?process_index$", re.I)
# The rank of a matrix, of a low-rank adapter, of an answer in a list.
_OF_SOMETHING_ELSE = re.compile(
    r"(?:matrix|low|lora|lr|tensor|max|min|svd|eff|effective|target|mean|page)_*rank$", re.I
)
_WORLD = re.compile(r"world|num_replicas|n_?ranks|num_ranks|num_processes|num_shards|dp_size|n_?gpus", re.I)
_OF_A_GROUP = re.compile(r"(?:^|_)(?:tp|sp|cp|mp|ep|parallel|mesh)_?(?:world_?)?(?:size|degree)$", re.I)
_MAIN = re.compile(
    r"^_*(?:(?:is|am|are|i|we|im|this|on|the|trainer)_)*(?:global_|local_|world_)*"
    r"(?:main|master|primary|rank_?(?:zero|0)|first_rank|global_zero|process_zero|chief|coordinator)"
    r"(?:_process|_rank|_proc|_node|_worker)?(?:_first)?_*$",
    re.I,
)


def names_process(word: str) -> bool:
    """Whether a name is that of the number of the process, in the job or on its host: `rank`, `global_rank`, `local_rank`."""
    return names_global_rank(word) or bool(_OF_THE_HOST.match(word))


def names_global_rank(word: str) -> bool:
    """Whether a name is that of the number of the process in the whole job."""
    return bool(_GLOBAL.match(word))


def names_some_rank(word: str) -> bool:
    """Whether a name is that of a number in which ranks differ, in whatever group: `rank`, `tp_rank`, `node_rank`."""
    return names_process(word) or (bool(_SOME.search(word)) and not _OF_SOMETHING_ELSE.search(word))


def names_world(word: str) -> bool:
    """Whether a name is that of the number of ranks: `world_size`, `num_replicas`, `get_world_size`."""
    return bool(_WORLD.search(word))


def names_parallel_size(word: str) -> bool:
    """Whether a name is that of the number of ranks that share a layer: `tp_size`, `tensor_model_parallel_size`."""
    return bool(_OF_A_GROUP.search(word))


def words_of(node: ast.expr) -> Iterator[str]:
    """The names in an expression, and the variables of the launcher that it asks for: of `int(os.environ["RANK"])` RANK too."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and one.value in (*RANK_VARIABLES, "WORLD_SIZE"):
            yield str(one.value)
        elif word := last_word(one):
            yield word


def names_main(word: str) -> bool:
    """Whether a name says that this is the main process: `is_main_process`, `master`, `is_rank_zero`."""
    return bool(_MAIN.match(word))


def is_of_part(word: str) -> bool:
    """Whether a name is about the processes of a host, a node or a group, each of which has a first one: `local_rank`."""
    return any(part in word for part in ("local", "node", "group"))


def lets_one_in(decorator: ast.AST) -> bool:
    """Whether a decorator lets only one rank into its function: `@rank_zero_only`, `@accelerator.on_main_process`.

    What it says in a string, as the name of a parameter of a test, is none.
    """
    return any(_ZERO_ONLY.search(last_word(node)) for node in ast.walk(decorator))
