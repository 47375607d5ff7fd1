"""How one rank's recording lies on disk: one file of fixed size, written through mmap, readable at any moment from outside.

    header   4 KiB: magic, version, who writes (rank, pid, ...), the directory of sections
    sections rings of fixed-size records (calls, steps, events, ...), one text table, one table of process groups

Written by the probe with `struct`, read with numpy; both sides take the fields from here. Every ring record begins and ends with
its own number (1, 2, 3, ...): where the two differ the writer was killed, or is at work, in the middle of that record, and the
reader leaves it out. So a SIGKILL costs at most the one record that was being written.

Standard library only: this module is imported inside the ranks.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import TypeVar

STREAMS = frozenset(
    {"collectives", "progress", "samples", "environment", "gradients", "memory", "checkpoints"}
)  # what a probe can record
MAGIC = b"DDOCTOR\x00"
VERSION = 4  # readers refuse any other; whoever changes a record, a flag or a meaning raises it (a test notices)
HEADER_BYTES = 4096

# struct codes are little-endian and unpadded; fields are ordered so that the natural alignment holds anyway.
Fields = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class Record:
    """A fixed-size record: its fields as (name, struct code)."""

    name: str
    fields: Fields
    packer: struct.Struct = field(init=False)
    offsets: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        packer = struct.Struct("<" + "".join(code for _, code in self.fields))
        offsets, at = {}, 0
        for name, code in self.fields:
            offsets[name] = at
            at += struct.calcsize("<" + code)
        object.__setattr__(self, "packer", packer)
        object.__setattr__(self, "offsets", offsets)

    @property
    def size(self) -> int:
        return self.packer.size


HEADER = Record(
    "header",
    [
        ("magic", "8s"),
        ("version", "I"),
        ("header_bytes", "I"),
        ("file_bytes", "Q"),
        ("rank", "i"),
        ("world_size", "i"),
        ("local_rank", "i"),
        ("attempt", "i"),  # restart count of the elastic agent
        ("pid", "I"),
        ("section_count", "I"),
        ("pid_started", "Q"),  # clock ticks since boot, /proc/PID/stat field 22: tells a reused pid apart
        ("wall_ns", "q"),  # the two clocks read together once, to compare ranks of different hosts
        ("monotonic_ns", "q"),
        ("host", "64s"),
        ("boot", "16s"),  # the kernel's boot id, and the PID namespace in which `pid` counts; zeros in older traces
        ("pid_namespace", "Q"),
        ("claim", "Q"),  # see `Claim`
    ],
)


class Claim(IntEnum):
    """How sure it is that the process that began a trace is the rank, and not a helper that inherited its environment."""

    NONE = 0
    """It has the rank's environment, and has imported torch."""
    RANK = 1
    """It has joined the job, or trained a step."""
    LEFT = 2
    """It ended in order without either."""
    GAVE_WAY = 3
    """Another process did, and has its place: what this one writes is read by nobody."""


SECTION = Record("section", [("name", "24s"), ("offset", "Q"), ("stride", "I"), ("capacity", "I"), ("written", "Q")])
SECTIONS_AT = 256  # offset of the directory inside the header; `written` counts records ever written (bytes for texts)

CALL = Record(
    "calls",
    [
        ("seq", "Q"),  # 1, 2, 3, ... per rank
        ("entered_ns", "q"),  # monotonic
        ("returned_ns", "q"),  # a synchronous call came back; 0: not yet. Async and native calls: when they were issued
        ("waited_ns", "q"),  # an async call's handle was waited for; 0: not seen
        ("number", "Q"),  # 1, 2, ... per group; for point to point per (group, peer, direction)
        ("nbytes", "Q"),
        ("signature", "Q"),  # digest of what must agree between the members, see `signature_words`
        ("prefix", "Q"),  # running digest of the signatures 1..number of this group
        ("site_prefix", "Q"),  # running digest of the call sites 1..number; point to point: of its own one
        ("step", "I"),
        ("group", "I"),  # text id of the group's key
        ("shape", "I"),  # text id
        ("site", "I"),  # text id of path\0line\0function
        ("root", "i"),  # global rank of root or peer; -1: none or any
        ("tag", "i"),
        ("op", "H"),
        ("flags", "H"),
        ("reduce_op", "B"),
        ("dtype", "B"),
        ("thread", "H"),  # 0: the main thread; 1, 2, ...: the others, in the order of their first call
        ("end", "Q"),
    ],
)
# A call in parts, as it is written: what is alike in calls of one kind and line is packed once, `nbytes` and `signature`, and
# what stands from `group` to `thread`.
CALL_SIZE, CALL_PLACE = struct.Struct("<QQ"), struct.Struct("<IIIiiHHBBH")
CALL_PARTS = struct.Struct(f"<QqqqQ{CALL_SIZE.size}sQQI{CALL_PLACE.size}sQ")

GROUP = Record(
    "groups",
    [
        ("seq", "Q"),
        ("count", "Q"),  # collectives issued in this group
        ("prefix", "Q"),
        ("site_prefix", "Q"),
        ("last_ns", "q"),
        ("key", "I"),  # text id
        ("members", "I"),  # text id of `0,1,2` (global ranks; see `ranks_text`)
        ("backend", "I"),  # text id
        ("made_at", "I"),  # text id of the site
        ("end", "Q"),
    ],
)

STEP = Record(
    "steps",
    [
        ("seq", "Q"),
        ("at_ns", "q"),
        ("step", "Q"),  # optimizer steps since the start, from 1
        ("epoch", "q"),  # -1: unknown
        ("micro_steps", "I"),  # backward passes since the last step
        ("site", "I"),
        ("end", "Q"),
    ],
)

# Where the time of one optimizer step went, on this rank. Step `step` lasts from the `at_ns` of the record before it to its own.
TIME = Record(
    "times",
    [
        ("seq", "Q"),
        ("at_ns", "q"),  # the optimizer has stepped
        ("step", "Q"),  # as in STEP
        ("data_ns", "q"),  # in the `next` of DataLoaders, while gradients were on
        ("backward_ns", "q"),  # in `backward`, all passes together; on a device only the time that Python spent there
        (
            "optimizer_ns",
            "q",
        ),  # in the step itself, without backward passes of a closure and what distdoctor does around it
        ("forward_ended_ns", "q"),  # when the last backward pass began
        ("backward_ended_ns", "q"),  # and when it was over
        ("waited_ns", "q"),  # in `wait` of handles, outside of calls that block by themselves
        ("earlier_tails_ns", "q"),  # of passes before the last: what followed their last call from C++, summed
        ("collected_ns", "q"),  # in Python's garbage collection
        # The last moment at which nothing of the forward was computed yet, less the data that had come before; 0: not known.
        ("forward_began_ns", "q"),
        (
            "elements",
            "Q",
        ),  # of the largest tensor in each batch that went into wrapped models, else that loaders gave
        ("batches", "I"),  # that those DataLoaders gave
        ("backwards", "I"),  # passes
        ("end", "Q"),
    ],
)

EVENT = Record(
    "events",
    [
        ("seq", "Q"),
        ("at_ns", "q"),
        ("kind", "H"),
        ("flags", "H"),
        ("site", "I"),
        ("text", "I"),
        ("more", "I"),  # a second text id
        ("a", "q"),
        ("b", "q"),
        ("c", "q"),
        ("d", "q"),
        ("e", "q"),
        ("end", "Q"),
    ],
)

# With which random states one worker of one pass began: one of its generators each, in the order of RNG_SOURCES.
WORKER = Record(
    "workers",
    [
        ("seq", "Q"),
        ("pass_seq", "Q"),
        ("torch", "Q"),  # digest of the state
        ("random", "Q"),
        ("numpy", "Q"),
        ("dataset", "Q"),
        ("worker", "I"),  # 0, 1, ...
        ("drawn_from", "I"),  # bit n: its samples drew from generator n
        ("end", "Q"),
    ],
)

# One pass over one loader: what was handed to the user. Rewritten in place as the pass goes on, so `seq` and `end` stay.
PASS = Record(
    "passes",
    [
        ("seq", "Q"),
        ("started_ns", "q"),
        ("ended_ns", "q"),  # 0: not exhausted (still running, or left by `break`)
        ("dataset_length", "q"),  # of what the loader was given; -1: unknown
        ("epoch_told", "q"),  # value of the last set_epoch before the pass; -1: never called; -2: no whole number
        ("seed", "q"),  # of the sampler; -1: it has none
        ("drawn", "Q"),  # samples handed to the user; of iterable data, the first of each batch
        ("batches", "Q"),
        ("ahead", "Q"),  # samples drawn for the workers and not handed over yet
        (
            "first_step",
            "Q",
        ),  # steps of any optimizer made when the pass began: passes of different ranks are matched by it
        ("loader", "I"),  # 1, 2, ... per rank; a loader made anew on the same line for the same data keeps its number
        ("pass_number", "I"),  # 1, 2, ... per loader number
        ("loop_site", "I"),  # text id: the user's `for` line
        ("made_site", "I"),  # text id: where the loader was constructed
        (
            "dataset",
            "I",
        ),  # text id: class\0length\0content digest\0pieces of what lies below any Subset, \0digest with it
        ("sampler", "I"),  # text id: the classes from the outermost to the innermost, `BatchSampler>DistributedSampler`
        ("set_epoch_site", "I"),  # text id: the last set_epoch call's line
        ("set_epoch_calls", "I"),  # how often set_epoch had been called on this sampler when the pass began
        ("num_replicas", "i"),  # of the sampler; 0: it has none
        ("sampler_rank", "i"),  # -1: it has none
        ("batch_size", "i"),
        ("workers", "i"),
        ("keep_one_in", "I"),  # 1: every index is kept; m: those that `kept_indices` keeps, the same on every rank
        ("flags", "I"),
        ("optimizer", "I"),  # 1, 2, ... per rank: the one that stepped while the pass was running; 0: none did
        ("spare", "I"),
        ("end", "Q"),
    ],
)

# A block of indices that one pass handed over, in order; blocks are used round robin. RAW blocks hold the draws
# `block_number * BLOCK_INDICES` and following, as many as `drawn` of the pass says. Where not every index is kept, block 0 stays,
# the RAW block at work is used again and again, and what it held goes, thinned out, to KEPT blocks. Of iterable data ROWS blocks
# hold fingerprints of all samples, of which one in `covers` is kept.
BLOCK_INDICES = 1012
BLOCK = Record(
    "blocks",
    [
        ("seq", "Q"),
        ("pass_seq", "Q"),
        ("covers", "Q"),  # KEPT: the indices up to here stand for the first `covers` draws of the pass
        ("block_number", "I"),  # 0, 1, ... within the pass and kind
        ("count", "I"),  # KEPT: how many indices are valid
        ("kind", "I"),
        ("spare", "I"),
        ("indices", f"{BLOCK_INDICES * 4}s"),  # unsigned 32 bit
        ("end", "Q"),
    ],
)


# The stream of gradients: what the optimizers hold, when they stepped, and digests of it. `gradients` explains the words.
TENSOR = Record(
    "tensors",
    [
        ("seq", "Q"),
        ("numel", "Q"),  # on this rank: of a shard, the shard's
        ("name", "I"),  # text id: as in `named_parameters`; `optimizer 1 group 0 parameter 3` where no module holds it
        ("shape", "I"),  # text id: [64, 3], the whole tensor's
        (
            "agree",
            "I",
        ),  # text id of `0,1,2`: the ranks that should hold the same bits; "": not known; one rank: nobody else
        ("grad_agree", "I"),  # the same for the gradient
        ("owner", "I"),  # text id: the class of the module that holds it
        ("optimizer", "H"),  # 1, 2, ... in the order of the first steps; 0: held by none
        ("group", "H"),  # parameter group of the optimizer
        ("dtype", "H"),
        ("flags", "H"),
        ("index", "I"),  # 0, 1, ... within the optimizer
        ("end", "Q"),
    ],
)

# One optimizer step that was looked at, for one set of ranks that should agree. Digests are 0 where nothing was digested.
UPDATE = Record(
    "updates",
    [
        ("seq", "Q"),
        ("at_ns", "q"),
        ("step", "Q"),  # steps of this optimizer, from 1; 0: before the first one
        ("grads", "Q"),  # of all gradients when the step began
        ("params", "Q"),  # of all parameters when it was over
        ("state", "Q"),  # of the optimizer's state
        ("inputs", "Q"),  # of the first elements that the wrapped model was given last; 0: not seen
        ("hyper", "Q"),  # of the numbers in param_groups: lr, betas, ...
        ("lr", "d"),  # of the first group
        ("scale", "d"),  # of the GradScaler; 0: none is at work
        ("norm", "d"),  # L2, of all gradients on this rank; -1: not computed
        ("loss", "d"),  # mean of the roots that `backward` was called on since the step before; NaN where unknown
        ("tensors", "I"),
        ("agree", "I"),  # text id, see TENSOR
        ("held", "I"),  # gradients that were there; the others were None
        ("non_finite", "I"),  # gradients with a NaN or an infinity
        ("backwards", "I"),  # calls of `backward` since the step before
        ("synced", "I"),  # forwards of DistributedDataParallel that average in backward, since the step before
        ("unsynced", "I"),  # those that do not (no_sync)
        ("skipped", "I"),  # steps that the GradScaler has skipped so far
        ("site", "I"),  # text id: the optimizer's step
        ("loss_site", "I"),  # text id: the last backward
        ("roots", "I"),  # text id: the factors between `backward` and the loss itself: `div 4;nll_loss mean`
        ("optimizer", "H"),
        ("flags", "H"),
        ("end", "Q"),
    ],
)

# One tensor of one update.
DIGEST = Record(
    "digests",
    [
        ("seq", "Q"),
        ("grad", "Q"),  # 0: there was none
        ("before", "Q"),  # of the parameter when the step began; 0: not digested
        ("param", "Q"),  # when it was over
        ("state", "Q"),
        (
            "grad_sum",
            "Q",
        ),  # of the gradient's 64-bit words, modulo 2^64; of a COPY: how often its parameters were written to
        ("param_sum", "Q"),  # of the parameter's: before the step where `before` is there, else after it
        ("state_before", "Q"),  # of the optimizer's state when the step began; 0: not digested, or there was none
        ("step", "I"),
        ("tensor", "I"),  # number of the TENSOR
        ("norm", "f"),  # L2 of the gradient on this rank
        ("flags", "I"),
        ("end", "Q"),
    ],
)

# A few elements of one gradient: as this rank computed them, and as the optimizer found them.
SPOTS = 4
SPOT = Record(
    "spots",
    [
        ("seq", "Q"),
        ("step", "I"),
        ("tensor", "I"),
        *((f"own_{i}", "d") for i in range(SPOTS)),
        *((f"used_{i}", "d") for i in range(SPOTS)),
        ("end", "Q"),
    ],
)


# What the rank is at: one record, rewritten whenever a phase begins. It is still there when the kernel has killed the rank.
DOING = Record(
    "doing",
    [
        ("seq", "Q"),
        ("at_ns", "q"),  # the phase began
        ("step", "Q"),  # steps that were over
        ("phase", "I"),
        ("site", "I"),  # text id: the user's line at which it began
        ("end", "Q"),
    ],
)

# The stream of memory. Bytes throughout; 0 where nothing was measured.
MEMORY = Record(
    "memory",
    [
        ("seq", "Q"),
        ("at_ns", "q"),
        ("step", "Q"),  # of the optimizer that steps most often; 0: before the first
        ("rss", "Q"),  # resident memory of the process when the optimizer had stepped
        ("rss_backward", "Q"),  # when the last backward before it began: what the forward keeps is there
        ("shared", "Q"),  # the part of `rss` that lies in files and shared memory
        ("allocated", "Q"),  # by PyTorch's allocator on the device
        ("reserved", "Q"),  # by it from the device
        ("peak", "Q"),  # highest `allocated` since the start
        ("inactive", "Q"),  # in blocks that were split and cannot be given back
        ("capacity", "Q"),  # of the device
        ("parameters", "Q"),  # each storage once; of a DTensor what this rank holds
        ("gradients", "Q"),
        ("state", "Q"),  # of the optimizers
        ("buffers", "Q"),
        ("available", "Q"),  # host memory that can still be had: MemAvailable, or what the container's limit leaves
        ("limit", "Q"),  # host memory in all: MemTotal or the container's limit
        ("shm_free", "Q"),  # of /dev/shm
        ("shm_size", "Q"),
        ("workers_rss", "Q"),  # of the children of this process together
        ("workers", "I"),
        ("retries", "I"),  # times that the device's allocator had to give back its cache to satisfy a request
        ("site", "I"),  # text id: the optimizer's step
        ("device", "i"),  # index; -1: none
        ("end", "Q"),
    ],
)

# Something that the user's program holds: a variable, or an attribute of an object, with all tensors that lie in it.
HOLDER = Record(
    "holders",
    [
        ("seq", "Q"),
        ("at_ns", "q"),
        ("step", "Q"),
        ("bytes", "Q"),  # of the tensors in it, each storage once; parameters, gradients and optimizer state left out
        ("saved", "Q"),  # kept for a backward pass by the graph behind them
        ("nodes", "I"),  # of that graph
        ("old_nodes", "I"),  # of those, the ones that were there at the look before this one
        ("tensors", "I"),
        ("length", "I"),  # of the container
        ("label", "I"),  # text id: `losses`, `self.history`
        ("kind", "I"),  # text id: `list`, `Tensor`
        ("site", "I"),  # text id: where the function that holds it was at that moment; line 0: a global of that file
        ("flags", "I"),
        ("end", "Q"),
    ],
)

# One module in one forward pass (deep mode): what it keeps for backward.
SAVED = Record(
    "saved",
    [
        ("seq", "Q"),
        ("step", "Q"),
        ("bytes", "Q"),
        ("nodes", "I"),
        ("path", "I"),  # text id: `layers.0.attention`
        ("owner", "I"),  # text id: class
        ("site", "I"),  # text id: the user's line that called it
        ("end", "Q"),
    ],
)

# One phase of one step (deep mode).
PEAK = Record(
    "peaks",
    [
        ("seq", "Q"),
        ("step", "Q"),
        ("peak", "Q"),  # highest resident memory of the process during the phase; 0: the kernel does not tell
        ("rss", "Q"),  # at its end
        ("allocated", "Q"),  # on the device, at its end
        ("buckets", "Q"),  # of DistributedDataParallel's reducers
        ("phase", "I"),
        ("spare", "I"),
        ("end", "Q"),
    ],
)


class Phase(IntEnum):
    """What a rank does between two optimizer steps."""

    START = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4

    @property
    def word(self) -> str:
        return ("setting up", "loading data", "forward", "backward", "optimizer step")[self]


HOOKS = "hooks"  # the kind of a holder whose hooks are counted: `layer._forward_hooks`


GRAPH_NODES = 4000
"""Operations of the graph behind a holder that are counted at most."""


_Flags = TypeVar("_Flags", bound=type[IntFlag])


def _quick(flags: _Flags) -> _Flags:
    """Flags of which `&` gives a plain number: it is asked millions of times in a large job, and a member costs a microsecond.
    (`enum` gives every class of flags operators of its own, so none can be inherited.)"""
    flags.__and__ = flags.__rand__ = int.__and__  # type: ignore[method-assign, assignment, misc]
    return flags


@_quick
class HolderFlag(IntFlag):
    BOUNDED = 1  # a deque with maxlen
    GRAPH = 4  # some tensor in it has a graph behind it
    PART = 8  # there was no time to count all of the graph


@_quick
class TensorFlag(IntFlag):
    FROZEN = 1  # requires_grad is off; of a COPY: it is none, but a model of another form that nobody trains
    OUTSIDE = 2  # inside a DistributedDataParallel that does not reduce its gradient
    BUFFER = 4
    NORMALISATION = 8  # running statistics of a batch normalisation
    SHARDED = 16  # a DTensor of which this rank holds a part
    LATER = 32  # buffers: the wrapper broadcasts them before the next forward
    COPY = 64  # of BUFFERs: all parameters of a copy of what is trained, under one digest
    CARRIED = 128  # another optimizer had stepped it before this one did
    PLAIN = 256  # of BUFFERs: an attribute of an object that is no module
    IGNORED = 512  # a DistributedDataParallel holds it and was told to leave it alone


@_quick
class UpdateFlag(IntFlag):
    DIGESTED = 1
    STATE = 2  # the optimizer's state was digested as well
    NO_RATE = 4  # the learning rate of every group is zero
    CLIPPED = 16  # clip_grad_norm_ or clip_grad_value_ was called since the step before
    ONE_LINE = 128  # all backward passes since the step before came from one line
    CLEARED = 512  # zero_grad was called between two of the backward passes since the step before
    PILED = 256  # what the step before had used was still there when the first backward began, and nobody zeroed it


@_quick
class DigestFlag(IntFlag):
    NON_FINITE = 1
    UNREADABLE = 2
    COMPUTING = 4  # of a COPY: as it was when it first computed in that step, not when the step was over


class BlockKind(IntEnum):
    RAW = 0
    KEPT = 1
    ROWS = 2


class Op(IntEnum):
    """Operations of a process group. The words are c10d's own."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    ALL_GATHER_INTO_TENSOR = 5
    REDUCE_SCATTER = 6
    REDUCE_SCATTER_TENSOR = 7
    ALL_TO_ALL = 8
    ALL_TO_ALL_SINGLE = 9
    BARRIER = 10
    GATHER = 11
    SCATTER = 12
    SEND = 13
    RECV = 14
    RECV_ANY = 15
    MONITORED_BARRIER = 16
    ALL_REDUCE_COALESCED = 17
    ALL_GATHER_COALESCED = 18
    REDUCE_SCATTER_COALESCED = 19
    SPLIT = 20
    NEW_WINDOW = 21

    @property
    def word(self) -> str:
        return self.name.lower()


POINT_TO_POINT = frozenset({Op.SEND, Op.RECV, Op.RECV_ANY})
ROOTED = frozenset({Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER})
# Every member needs every other one; of the rooted ones a member may be through before others have come.
FROM_ALL = frozenset(Op) - POINT_TO_POINT - ROOTED - {Op.UNKNOWN}
# Sizes (and dtype) have to be equal on every member. Not for all_to_all (splits) nor the object behind gather/scatter roots.
EQUAL_SIZES = frozenset(
    {
        Op.ALL_REDUCE,
        Op.BROADCAST,
        Op.REDUCE,
        Op.ALL_GATHER,
        Op.ALL_GATHER_INTO_TENSOR,
        Op.REDUCE_SCATTER,
        Op.REDUCE_SCATTER_TENSOR,
        Op.ALL_REDUCE_COALESCED,
        Op.ALL_GATHER_COALESCED,
        Op.REDUCE_SCATTER_COALESCED,
        Op.GATHER,
        Op.SCATTER,
    }
)


class ReduceOp(IntEnum):
    """Reductions. NONE: the operation reduces nothing. UNSEEN: it does, but this caller's choice could not be seen."""

    NONE = 0
    SUM = 1
    AVG = 2
    PRODUCT = 3
    MIN = 4
    MAX = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    PREMUL_SUM = 9
    UNSEEN = 255


@_quick
class CallFlag(IntFlag):
    ASYNC = 1  # the caller asked for a handle
    NATIVE = 2  # issued by C++ (DDP's reducer, ...), which does not tell when the operation is over
    FAILED = 4  # left by an exception
    COALESCED = 8  # inside a coalescing manager or batch_isend_irecv
    OBJECT = 16  # part of an object collective: sizes may differ by design
    BY_LIBRARY = 32  # no frame of the user's own source on the stack
    DROPPED = 64  # the handle that the user's line got back was let go without anybody asking it
    ON_DEVICE = 256  # of tensors on a CUDA device
    CHANGED = 512  # what it only reads had other values when its handle was first asked than when it was issued


# What the samples of a data set may draw their augmentation from: bit n of a worker's word is entry n.
RNG_SOURCES = ("torch", "random", "numpy", "dataset")  # as the fields of WORKER; `dataset`: a generator of the data set


@_quick
class PassFlag(IntFlag):
    SHUFFLE = 1
    SHUFFLE_KNOWN = 2
    DROP_LAST = 4  # of the sampler where it has one, else of the loader
    DISTRIBUTED_SAMPLER = 8  # torch's DistributedSampler itself, or one that leaves its order as it is
    ITERABLE = 16
    GRADIENTS_ON = 32  # grad mode when the pass began
    REPLACEMENT = 64  # the sampler draws with replacement
    HASHED = 128  # `blocks` hold 32-bit digests: of indices that are no integers below 2^32, or of iterable samples
    STEPPED = 512  # an optimizer stepped while this pass was running: it trains
    WHOLE = 1024  # torch's RandomSampler or SequentialSampler over all that the loader was given
    TRUNCATED = 2048  # only the first indices were stored: there was no room for more, or they could not be read
    TRANSLATED = 4096  # indices are those of the data set below the Subsets
    UNTRANSLATED = 8192  # drawn from a Subset whose own indices could not be read
    UNORDERED = 16384  # the loader hands batches over as they come (in_order=False): stored in the order of drawing
    TELLABLE = 32768  # a sampler with a set_epoch; or iterable data: `epoch_told`, `seed` and SHUFFLE are theirs then
    EVENED = 65536  # accelerate's batch shards, filled up from the beginning until all ranks have equally many batches
    EVAL_MODE = 131072  # the model was in eval mode when the pass began
    OUTDATED = 262144  # set_epoch changed the data after the workers had begun, which hold copies of their own
    PERSISTENT = 524288  # the workers live on for the next pass
    GIVEN = 1048576  # no loader's: digests of the rows that a wrapped model was given
    STARTED = 2097152  # the workers were started for this pass


DTYPES: tuple[str, ...] = (
    "",
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
SITE_SEPARATOR = "\0"

# Sections of a recording: (record, capacity). 8,192 calls are about 15 minutes of a 50-collective step at 5 s, or 8 s of one at
# 50 ms; prefix digests carry what the ring has forgotten. All of it together stays below 4 MiB.
RINGS: tuple[tuple[Record, int], ...] = (
    (CALL, 8192),
    (GROUP, 256),
    (STEP, 4096),
    (EVENT, 960),
    (WORKER, 128),
    (PASS, 256),
    (BLOCK, 256),
    (TIME, 1600),
)
# Sections that a trace has only where their stream is asked for.
MORE_RINGS: dict[str, tuple[tuple[Record, int], ...]] = {
    "gradients": ((TENSOR, 3072), (UPDATE, 1536), (DIGEST, 8192), (SPOT, 256)),
    "memory": ((MEMORY, 512), (HOLDER, 256), (SAVED, 192), (PEAK, 128), (DOING, 1)),
}
RECORDS = {record.name: record for rings in (RINGS, *MORE_RINGS.values()) for record, _ in rings}
_ADDED = {"times": "forward_began_ns"}  # fields that records of earlier traces do not have: they read as 0
TEXT_BYTES = 384 * 1024
TEXTS = "texts"
TEXT_HEAD = struct.Struct("<I")  # length of the UTF-8 text that follows; text ids count from 1, 0 is ""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: multiplication by it is a bijection modulo 2^64


@lru_cache(maxsize=64)
def record_of(name: str, stride: int) -> Record | None:
    """The record `name` as whoever wrote `stride` bytes of each knew it, without what was added later. None: there is none."""
    record = RECORDS.get(name)
    if record is None or record.size == stride:
        return record
    earlier = Record(name, [field for field in record.fields if field[0] != _ADDED.get(name)])
    return earlier if earlier.size == stride else None


def digest_of(text: str) -> int:
    """64 bits of a text, the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def signature_of(op: Op, dtype: int, shape: str, reduce_op: int, root: int, flags: int = 0) -> int:
    """Digest of what the members of a group must agree on at one sequence number.

    Sizes and dtype only where the operation demands equality, the root only where there is one. Object collectives agree on
    the operation alone: their sizes are data.
    """
    sized = op in EQUAL_SIZES and not flags & CallFlag.OBJECT
    words = [
        op.word,
        DTYPES[dtype] if sized else "",
        shape if sized else "",
        str(int(reduce_op)),
        str(root) if op in ROOTED else "",
    ]
    return digest_of("|".join(words))


def extend(prefix: int, word: int) -> int:
    """The running digest `prefix` with one more 64-bit word; order matters."""
    return ((prefix ^ word) * GOLDEN + 1) & MASK


def site_text(path: str, line: int, function: str) -> str:
    return f"{path}{SITE_SEPARATOR}{line}{SITE_SEPARATOR}{function}"


CHAIN_MARK = "calls"
Span = tuple[
    int, int, int, int
]  # line, last line, column, column of the end (bytes); columns are -1 where Python tells none


def chain_text(calls: Iterable[tuple[str, Span, str]]) -> str:
    """The text of the calls, innermost first, through which a collective was issued: (path, where, function) of each.

    Its digest is the word that extends the running digest of call sites.
    """
    parts = [CHAIN_MARK]
    for path, span, function in calls:
        parts += [path, ",".join(map(str, span)), function]
    return SITE_SEPARATOR.join(parts)


def chain_of(text: str) -> list[tuple[str, Span, str]] | None:
    """The calls of such a text, None for any other."""
    mark, *parts = text.split(SITE_SEPARATOR)
    if mark != CHAIN_MARK or not parts or len(parts) % 3:
        return None
    found: list[tuple[str, Span, str]] = []
    for path, span, function in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        numbers = span.split(",")
        if len(numbers) != 4 or not all(number.removeprefix("-").isdecimal() for number in numbers):
            return None
        line, last, column, end = map(int, numbers)
        found.append((path, (line, last, column, end), function))
    return found


SOURCE_MARK = "source"


def source_text(path: str, digest: str) -> str:
    """The text by which a trace says what a source file held when the rank ran it. No place in the source reads like it."""
    return SITE_SEPARATOR.join((SOURCE_MARK, path, digest, ""))


def source_of(text: str) -> tuple[str, str] | None:
    """(path, digest) of such a text, None for any other."""
    parts = text.split(SITE_SEPARATOR)
    return (parts[1], parts[2]) if len(parts) == 4 and parts[0] == SOURCE_MARK else None


def source_digest(data: bytes) -> str:
    """What two files have in common only when they are the same."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


LONGEST_TEXT = 16384  # bytes; what is longer is cut off


def ranks_text(ranks: Sequence[int]) -> str:
    """`0,1,2`; where that would be cut off (beyond 3,500 ranks), runs are written `0-4095,5000`. The order is kept."""
    text = ",".join(map(str, ranks))
    if len(text) < LONGEST_TEXT:
        return text
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


MOST_RANKS = 1 << 17  # no job has more; a number beyond it in a file is damage, or meant to fill the reader


def whole_number(text: str) -> int | None:
    """The number that up to 18 ASCII digits write (so that it fits 64 bits); None for anything else, `²` included."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


@lru_cache(maxsize=4096)  # thousands of ranks write the same few texts, each as long as the job is large
def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks that `ranks_text` wrote; what cannot be ranks is left out."""
    ranks: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        start = whole_number(first)
        end = whole_number(last) if last else start
        if start is not None and end is not None and end < MOST_RANKS and len(ranks) + end - start < MOST_RANKS:
            ranks += range(start, end + 1)
    return tuple(ranks)


def align(size: int, to: int = 4096) -> int:
    return -(-size // to) * to


def plan(streams: Iterable[str] = ()) -> tuple[list[tuple[str, int, int, int]], int]:
    """The sections as (name, offset, stride, capacity), and the size of the whole file in bytes."""
    sections, at = [], HEADER_BYTES
    more = [ring for stream in sorted(streams) for ring in MORE_RINGS.get(stream, ())]
    for record, capacity in (*RINGS, *more):
        sections.append((record.name, at, record.size, capacity))
        at += align(record.size * capacity)
    sections.append((TEXTS, at, 1, TEXT_BYTES))
    return sections, at + align(TEXT_BYTES)
