"""torch's functions by the operation that they are, as stacks name them."""

from __future__ import annotations

from distdoctor.recording.trace.layout import Op

OPERATIONS = {op.word: op for op in Op} | {
    "isend": Op.SEND, "irecv": Op.RECV, "send_object_list": Op.SEND, "recv_object_list": Op.RECV,
    "all_gather_object": Op.ALL_GATHER, "gather_object": Op.GATHER, "broadcast_object_list": Op.BROADCAST,
    "scatter_object_list": Op.SCATTER, "batch_isend_irecv": Op.UNKNOWN, "_all_gather_base": Op.ALL_GATHER_INTO_TENSOR,
    "_reduce_scatter_base": Op.REDUCE_SCATTER_TENSOR, "reduce_scatter_tensor": Op.REDUCE_SCATTER_TENSOR,
}  # fmt: skip
