"""One entry of a flight recorder dump: what torch writes, in the words of a recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from distdoctor.recording.stacks import is_users_path
from distdoctor.recording.trace.layout import (
    DTYPES,
    POINT_TO_POINT,
    ROOTED,
    CallFlag,
    Op,
    ReduceOp,
    digest_of,
    signature_of,
    site_text,
)

_LONGEST_TEXT = 10_000
_PEER = re.compile(r"(?<!\d)\d{1,9} {0,9}(?:->|<-) {0,9}(\d{1,9})(?!\d)", re.ASCII)
_REDUCE_OP = re.compile(
    r" op=([A-Z_]{1,20})"
)  # torchcomms' log tells these two, and the reader puts them behind the name
_ROOT = re.compile(r" root=(\d{1,9})")

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "ComplexHalf": "complex32", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz", "UInt16": "uint16", "UInt32": "uint32",
    "UInt64": "uint64",
}  # fmt: skip
_ITEM_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
               "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
# profiling_name without its backend, lower case and without a peer (torch 2.5-2.15, torchcomms; `COLLECTIVES` of
# torch/distributed/flight_recorder/components/types.py and the names in libtorch).
_OPS = {
    "all_reduce": Op.ALL_REDUCE, "allreduce": Op.ALL_REDUCE, "all_reduce_sparse": Op.ALL_REDUCE,
    "sparse_all_reduce": Op.ALL_REDUCE,
    "broadcast": Op.BROADCAST, "_broadcast_oop": Op.BROADCAST, "reduce": Op.REDUCE, "_reduce_oop": Op.REDUCE,
    "all_gather": Op.ALL_GATHER, "allgather": Op.ALL_GATHER, "all_gather_v": Op.ALL_GATHER,
    "_all_gather_base": Op.ALL_GATHER_INTO_TENSOR, "all_gather_into_tensor": Op.ALL_GATHER_INTO_TENSOR,
    "all_gather_single": Op.ALL_GATHER_INTO_TENSOR, "_allgather_base": Op.ALL_GATHER_INTO_TENSOR,
    "reduce_scatter": Op.REDUCE_SCATTER, "reduce_scatter_v": Op.REDUCE_SCATTER,
    "_reduce_scatter_base": Op.REDUCE_SCATTER_TENSOR, "reduce_scatter_tensor": Op.REDUCE_SCATTER_TENSOR,
    "reduce_scatter_single": Op.REDUCE_SCATTER_TENSOR,
    "all_to_all": Op.ALL_TO_ALL, "alltoall": Op.ALL_TO_ALL, "all_to_all_base": Op.ALL_TO_ALL_SINGLE,
    "all_to_all_single": Op.ALL_TO_ALL_SINGLE, "all_to_all_v_single": Op.ALL_TO_ALL_SINGLE, "alltoall_base": Op.ALL_TO_ALL_SINGLE,
    "barrier": Op.BARRIER, "all_reduce_barrier": Op.BARRIER, "scatter": Op.SCATTER, "gather": Op.GATHER,
    "gather_single": Op.GATHER,
    "send": Op.SEND, "recv": Op.RECV, "recvanysource": Op.RECV_ANY, "recv_any_source": Op.RECV_ANY,
    "allreduce_coalesced": Op.ALL_REDUCE_COALESCED, "all_reduce_coalesced": Op.ALL_REDUCE_COALESCED,
    "allgather_into_tensor_coalesced": Op.ALL_GATHER_COALESCED, "allgather_coalesced": Op.ALL_GATHER_COALESCED,
    "all_gather_coalesced": Op.ALL_GATHER_COALESCED, "reduce_scatter_tensor_coalesced": Op.REDUCE_SCATTER_COALESCED,
    "reduce_scatter_coalesced": Op.REDUCE_SCATTER_COALESCED,
}  # fmt: skip
_REDUCING = frozenset(op for op in Op if op.word.startswith(("all_reduce", "reduce")))
_SIZED_BY_OUTPUT = frozenset(
    {Op.REDUCE_SCATTER, Op.REDUCE_SCATTER_TENSOR, Op.REDUCE_SCATTER_COALESCED, Op.SCATTER, Op.RECV, Op.RECV_ANY}
)


@dataclass(frozen=True)
class FlightDump:
    """One rank's dump as it lies on disk: `entries` and the rest of it, unjudged."""

    rank: int
    source: str
    entries: Sequence[Mapping[str, Any]]
    groups: Mapping[str, tuple[int, ...]]  # of pg_config: name -> global ranks; gloo's is broken and left out
    # Of pg_status, by pg_id: the last number enqueued, started, completed; -1 is none, or not noted (gloo: never started).
    status: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    library: str = ""
    written_ns: int = 0  # wall clock
    descriptions: Mapping[str, str] = field(
        default_factory=dict
    )  # of pg_config: name -> what the program calls the group


@dataclass(frozen=True)
class Kind:
    """What is the same for every entry of one operation, size, group and stack. Texts are numbers of the table."""

    op: Op
    dtype: int
    shape: int
    nbytes: int
    flags: int
    reduce_op: int
    signature: int
    site: int
    site_digest: int
    group: str
    description: str
    number: str  # of the group within its process: torch's pg_id
    backend: str
    peer: int  # within the group
    root: int  # of a collective, within the group; -1: it has none, or nobody tells
    is_default_group: bool
    pairwise: bool
    is_frame: bool  # `nccl:coalesced` around sends and receives: no operation of its own


def kind_of(entry: Mapping[str, Any], number_of_text: Callable[[str], int]) -> Kind:
    """The kind of an entry."""
    name, frames = text(entry.get("profiling_name")), _frames(entry)
    site, digest, flags = _site(frames) if frames else ("", 0, 0)
    op = op_of(name)
    side = "output" if op in _SIZED_BY_OUTPUT else "input"
    dtype, shape, elements = _sizes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes"))
    # Without a stack an object collective shows only as one-dimensional bytes, whose sizes are data.
    if not frames and dtype == "uint8" and shape.startswith("[") and "," not in shape:
        flags |= int(CallFlag.OBJECT)
    reduce_op = _reduce_op(name) if op in _REDUCING else int(ReduceOp.NONE)
    root = int(found[1]) if op in ROOTED and (found := _ROOT.search(name)) else -1
    number = DTYPES.index(dtype) if shape else 0
    return Kind(
        op=op,
        dtype=number,
        shape=number_of_text(shape),
        nbytes=min(max(0, elements) * _ITEM_BYTES.get(dtype, 4), 1 << 62),
        flags=flags,
        reduce_op=reduce_op,
        signature=signature_of(op, number, shape, reduce_op, root, flags),
        site=number_of_text(site),
        site_digest=digest,
        group=group_of(entry)[0],
        description=group_of(entry)[1],
        number=str(whole(entry.get("pg_id"))),
        backend=backend_of(name),
        peer=peer_of(name, op),
        root=root,
        is_default_group=group_of(entry)[1] == "default_pg",
        pairwise=op in POINT_TO_POINT,
        is_frame=bool(entry.get("is_p2p")) and op not in POINT_TO_POINT,
    )


def _reduce_op(name: str) -> int:
    match = _REDUCE_OP.search(name)
    return int(ReduceOp.__members__.get(match[1], ReduceOp.UNSEEN) if match else ReduceOp.UNSEEN)


def _sizes(sizes: Any, dtypes: Any) -> tuple[str, str, int]:
    """(dtype, shape as the probe writes it, elements)."""
    known = [size for size in sizes if isinstance(size, list | tuple)] if isinstance(sizes, list | tuple) else []
    dtype = _DTYPES.get(text(dtypes[0]), "") if isinstance(dtypes, list | tuple) and dtypes else ""
    counts = [prod(whole(n) for n in size) for size in known]
    shape = ";".join(str([whole(n) for n in size]) for size in known[:4])
    if len(known) > 4:
        shape += f";+{len(known) - 4} tensors, {sum(counts[4:])} elements"
    return dtype, shape, sum(counts)


def _frames(entry: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    frames = entry.get("frames")
    frames = frames[:96] if isinstance(frames, list | tuple) else ()
    return [(text(f.get("filename")), whole(f.get("line")), text(f.get("name"))) for f in frames if isinstance(f, dict)]


def is_users_frame(frame: Any) -> bool:
    """Whether a frame of a dump is a line of the user's own source."""
    return isinstance(frame, dict) and is_users_path(text(frame.get("filename")))


def _site(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, int]:
    flags = int(CallFlag.NATIVE)
    for path, line, name in frames:
        if is_users_path(path):
            words = site_text(path, line, name)
            return words, digest_of(words), flags
        if path.endswith(("distributed_c10d.py", "_functional_collectives.py")):
            flags &= ~int(CallFlag.NATIVE)
            if "object" in name:
                flags |= int(CallFlag.OBJECT)
            elif name in ("batch_isend_irecv", "_coalescing_manager"):
                flags |= int(CallFlag.COALESCED)
    return "", 0, flags | int(CallFlag.BY_LIBRARY)


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description) of the group of an entry; before torch 2.4 there is only pg_id."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and len(group) == 2:
        return text(group[0]), text(group[1])
    return str(whole(entry.get("pg_id"))), ""


def op_of(profiling_name: str) -> Op:
    """`nccl:all_reduce`, `gloo:all_gather`, `nccl:send 0->1` as the operation."""
    name, _, peers = profiling_name.partition(" ")
    op = _OPS.get(name.rpartition(":")[2].lower(), Op.UNKNOWN)
    return Op.RECV_ANY if op is Op.RECV and peers.endswith("?") else op


def peer_of(profiling_name: str, op: Op) -> int:
    """The 1 of `nccl:send 0->1`, counted within the group; -1 where there is none, or any."""
    match = _PEER.search(profiling_name) if op in (Op.SEND, Op.RECV) else None
    return int(match[1]) if match else -1


def backend_of(profiling_name: str) -> str:
    """`nccl` of `nccl:all_reduce`."""
    return profiling_name.partition(":")[0].lower() if ":" in profiling_name else ""


def whole(value: Any) -> int:
    """A whole number of 63 bits, 0 for anything else. JSON dumps write some numbers as texts."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if -(1 << 62) < number < 1 << 62 else 0


def text(value: Any) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
