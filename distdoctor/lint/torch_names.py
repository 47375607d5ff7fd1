"""What torch.distributed offers by name, so that a call of something it never had can be told."""

from __future__ import annotations

import difflib

# Public functions of torch.distributed from 1.4 to 2.14, and what was removed on the way (that is told as such).
FUNCTIONS = frozenset(
    (
        *(
            "all_gather",
            "all_gather_coalesced",
            "all_gather_into_tensor",
            "all_gather_multigpu",
            "all_gather_object",
            "all_gather_single",
            "gather",
            "gather_into_tensor",
            "gather_object",
            "gather_single",
        ),
        *(
            "all_reduce",
            "all_reduce_coalesced",
            "all_reduce_multigpu",
            "reduce",
            "reduce_multigpu",
            "reduce_op",
            "reduce_scatter",
            "reduce_scatter_multigpu",
            "reduce_scatter_single",
            "reduce_scatter_tensor",
        ),
        *("batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list"),
        *(
            "all_to_all",
            "all_to_all_single",
            "barrier",
            "broadcast",
            "broadcast_multigpu",
            "broadcast_object_list",
            "monitored_barrier",
            "scatter",
            "scatter_object_list",
        ),
        *(
            "breakpoint",
            "destroy_process_group",
            "get_backend",
            "get_backend_config",
            "get_backend_impl",
            "get_debug_level",
            "get_default_backend_for_device",
            "get_global_rank",
            "get_group_rank",
            "get_node_local_rank",
            "get_pg_count",
            "get_process_group_ranks",
            "get_rank",
            "get_world_size",
            "init_device_mesh",
            "init_process_group",
            "new_group",
            "new_subgroups",
            "new_subgroups_by_enumeration",
            "record_comm",
            "remote_device",
            "set_timeout",
            "shrink_group",
            "split_group",
        ),
    )
)
_ABOUT_RANKS = (
    "reduce",
    "gather",
    "scatter",
    "broadcast",
    "barrier",
    "all_to_all",
    "alltoall",
    "send",
    "recv",
    "get_rank",
)


def looks_invented(word: str) -> bool:
    """Whether a name says that it communicates, as those of torch.distributed do, and is none of them."""
    return word.islower() and word[0] != "_" and word not in FUNCTIONS and any(part in word for part in _ABOUT_RANKS)


def nearest(word: str) -> str:
    """The function that was meant, as far as the spelling tells."""
    begins = [name for name in FUNCTIONS if word.startswith(name)]
    return max(begins, key=len) if begins else (difflib.get_close_matches(word, FUNCTIONS, 1, 0.0) or ["all_reduce"])[0]
