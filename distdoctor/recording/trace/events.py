"""The rare things that a rank notes while it runs: one frozen dataclass per kind, written and read from the same fields.

A record of `layout.EVENT` has room for two texts and five numbers. A kind's own fields take them in their order: `str`, lists
of ranks and of names the texts; `int`, `bool` and `float` the numbers. So nothing is parsed, nothing can be misplaced, and a kind
that needs more room than there is fails when its first one is written.

Standard library only: this module is imported inside the ranks.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.trace.layout import EVENT, ranks_of, ranks_text

Ranks = tuple[int, ...]
Names = tuple[str, ...]
NAME_SEPARATOR = "\0"
TEXTS, NUMBERS = ("text", "more"), ("a", "b", "c", "d", "e")  # the fields of `layout.EVENT` that a kind may fill
DETACHED = " of detached features"
_LARGEST = (1 << 63) - 1


class _Slot(NamedTuple):
    """Where one field of a kind lies in the record, and how it gets there and back."""

    field: str
    place: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _bits(value: float) -> int:
    number: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return number


def _double(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number


def _fitting(value: int) -> int:
    return max(-_LARGEST, min(int(value), _LARGEST))


def _names(text: str) -> Names:
    return tuple(text.split(NAME_SEPARATOR)) if text else ()


_AS_TEXT: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    str: (str, str),
    Ranks: (ranks_text, ranks_of),
    Names: (NAME_SEPARATOR.join, _names),
}
_AS_NUMBER: dict[Any, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    int: (_fitting, int),
    bool: (int, bool),
    float: (_bits, _double),
}


PLACES = {name: place for place, (name, _) in enumerate(EVENT.fields)}  # of the fields in a row
_SEQ, _AT, _SITE, KIND_AT = (PLACES[name] for name in ("seq", "at_ns", "site", "kind"))


@dataclass(frozen=True, repr=False, eq=False)
class TraceEvent:
    """What all kinds have: when it was noted, on the rank's monotonic clock, and at which line of the user's."""

    number: ClassVar[int]
    at_ns: int = dataclasses.field(default=0, kw_only=True)
    site: SourceLine = dataclasses.field(default=SourceLine(), kw_only=True)
    seq: int = dataclasses.field(default=0, kw_only=True)  # of its record

    # Written once for all kinds: what `dataclass` makes for each of them takes longer to compile than all else of this module.
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


KINDS: dict[int, type[TraceEvent]] = {}
_slots: dict[int, tuple[_Slot, ...]] = {}  # by kind
Kind = TypeVar("Kind", bound=TraceEvent)


@typing.dataclass_transform(frozen_default=True)
def kind(number: int) -> Callable[[type[Kind]], type[Kind]]:
    """Make a frozen dataclass a kind of event. A number is never used again for another kind."""

    def make(cls: type[Kind]) -> type[Kind]:
        cls = dataclass(frozen=True, repr=False, eq=False)(cls)
        cls.number = number
        assert number not in KINDS, f"{number} is {KINDS[number].__name__} already"
        KINDS[number] = cls
        return cls

    return make


def slots_of(cls: type[TraceEvent]) -> tuple[_Slot, ...]:
    """The fields of a kind, each with its place in the record."""
    known = _slots.get(cls.number)
    if known is None:
        known = _slots[cls.number] = tuple(_placed(cls))
    return known


def _placed(cls: type[TraceEvent]) -> Iterator[_Slot]:
    texts, numbers = iter(TEXTS), iter(NUMBERS)
    hints = typing.get_type_hints(cls)
    for one in dataclasses.fields(cls):
        if one.name not in ("at_ns", "site", "seq"):
            hint = hints[one.name]
            place = next(texts if hint in _AS_TEXT else numbers)
            yield _Slot(one.name, place, *(_AS_TEXT.get(hint) or _AS_NUMBER[hint]))


def place_of(cls: type[TraceEvent], field: str) -> int:
    """Where a field of this kind lies in its record, in bytes: for a writer that knows it only later."""
    return EVENT.offsets[next(slot.place for slot in slots_of(cls) if slot.field == field)]


def encode(event: TraceEvent, text_id: Callable[[str], int]) -> dict[str, int]:
    """The fields of the record that the event's own fields fill."""
    values = {}
    for slot in slots_of(type(event)):
        value = slot.write(getattr(event, slot.field))
        values[slot.place] = text_id(value) if slot.place in TEXTS else value
    return values


def decode(cls: type[Kind], row: Sequence[int], texts: Sequence[str]) -> Kind:
    """The event that a row of `layout.EVENT` holds, its fields in their order; a text that is not on record is the empty one."""

    def text(number: int) -> str:
        return texts[number] if 0 <= number < len(texts) else ""

    slots = slots_of(cls)
    values = (row[PLACES[slot.place]] for slot in slots)
    fields = [
        slot.read(text(value) if slot.place in TEXTS else value) for slot, value in zip(slots, values, strict=True)
    ]
    return cls(*fields, at_ns=row[_AT], site=SourceLine.parse(text(row[_SITE])), seq=row[_SEQ])


# -- how the rank came, and how it went --------------------------------------------------------------------------------------


@kind(1)
class InitBegun(TraceEvent):
    """init_process_group was entered, and what it was asked for."""

    backend: str = ""
    address: str = ""  # where the ranks are to meet, "" where that is not known
    world_size: int = 0  # 0: not known
    rank: int = -1  # -1: not known
    launchers_port: int = 0  # of the store that the launcher holds, where this rank asks another port; else 0
    launched: int = 0  # WORLD_SIZE as the launcher gave it, 0: none did


@kind(2)
class InitDone(TraceEvent):
    """init_process_group came back."""

    world_size: int = 0
    timeout_ns: int = 0  # of the default group


@kind(3)
class NewGroupBegun(TraceEvent):
    """new_group was entered. `done_ns`: when it came back, 0: not yet, -1: with an exception."""

    members: Ranks = ()  # (): all
    members_only: bool = False  # use_local_synchronization: only the members take part
    done_ns: int = 0


@kind(4)
class NewGroupDone(TraceEvent):
    """A process group is there."""

    members: Ranks = ()
    key: str = ""


@kind(5)
class GroupDestroyed(TraceEvent):
    key: str = ""  # "": all groups


def _in_short(error: str) -> str:
    """In one line."""
    return " ".join(error.split())[:160]


@kind(7)
class UncaughtException(TraceEvent):
    errors: Names = ()  # `Type: message`; then those that were being handled when it was raised, up to the first one
    traceback_file: str = ""  # in the run folder

    @property
    def words(self) -> str:
        """Of the exception itself."""
        return self.errors[0] if self.errors else ""


@kind(80)
class ErrorHeldBack(TraceEvent):
    """A collective was issued while an exception was being handled. The site is where it was raised."""

    error: str = ""  # `KeyError: 'phone'`
    call: int = 0  # the number of the record of the newest such collective of that line
    calls: int = 0  # so many while this exception was being handled, that one included

    @property
    def words(self) -> str:
        return _in_short(self.error)


@kind(81)
class ThreadFailed(TraceEvent):
    """An exception ended a thread of the program's, or a task in one; the process goes on. The site is where it was raised."""

    error: str = ""  # `ValueError: could not convert string to float: 'n/a'`
    thread: str = ""  # its name
    kept: bool = False  # by the future of a task: nobody sees it before that is asked

    @property
    def words(self) -> str:
        return _in_short(self.error)


@kind(8)
class Exiting(TraceEvent):
    """The interpreter is shutting down."""

    after_exception: bool = False


@kind(9)
class ProbeTrouble(TraceEvent):
    """The probe fell silent or lost something."""

    what: str = ""

    @property
    def reason(self) -> str:
        """Also where the probe could not even write down words."""
        return self.what or "it could not say why"


@kind(10)
class LongPhase(TraceEvent):
    """A phase in which no progress is expected. One record for all of its kind: rewritten when it begins again."""

    phase: str = ""  # checkpoint, evaluation, compile
    ended_ns: int = 0  # 0: not yet
    named: bool = False  # by the program itself: distdoctor.phase, a callback


# -- replicas ----------------------------------------------------------------------------------------------------------------


WATCHED = "distdoctor.watch(model)"
"""The user has said that these ranks hold replicas of a model."""


@kind(12)
class Averaging(TraceEvent):
    """Gradients are averaged over these ranks."""

    ranks: Ranks = ()
    by: str = ""  # DistributedDataParallel, ..., or `WATCHED`


@kind(13)
class FirstStep(TraceEvent):
    """An optimizer's first step, and the shapes of the gradients that it steps with."""

    shapes: Names = ()  # `[64, 3]`, of the first of them
    elements: int = 0
    gradients: int = 0


@kind(20)
class Wrapped(TraceEvent):
    """DistributedDataParallel was made. A rank's are numbered 1, 2, ... in this order."""

    ranks: Ranks = ()
    broadcasts_buffers: bool = True
    searches_unused: bool = False
    static_graph: bool = False
    reduced: int = 0  # parameters whose gradients it reduces
    held: int = 0  # parameters in it


@kind(21)
class Bypassed(TraceEvent):
    """Parameters of a DistributedDataParallel had gradients in a step, and no forward went through it since the step before. The
    site is that of the forward of the module inside, once one was seen."""

    module: str = ""  # class of what is inside, or of its part whose forward was seen
    step: int = 0
    wrapper: int = 0  # see Wrapped
    parameters: Names = ()  # of those that it reduces


@kind(22)
class Converted(TraceEvent):
    """A module with wrapped parameters was moved or cast."""

    module: str = ""
    step: int = 0


@kind(23)
class ParameterAdded(TraceEvent):
    """A parameter was registered inside a wrapped module."""

    name: str = ""
    step: int = 0


@kind(24)
class Clipped(TraceEvent):
    """The first clipping on a line."""

    by: str = ""  # `norm`, `value`
    scaled: bool = False  # while gradients are scaled
    step: int = 0


@kind(25)
class NonFinite(TraceEvent):
    """The first NaN or infinity."""

    # `loss`, `gradient`, `output`, `input`, and `last finite`: the layer before that input; of what autograd had kept: `nan`,
    # `infinity`, `outside`, `weight`
    what: str = ""
    name: str = ""
    step: int = 0
    backward: int = 0


@kind(26)
class Joined(TraceEvent):
    """This rank has no more inputs, the others may have some: torch's Join shadows them from here on."""

    steps: int = 0  # that it has made
    ended: int = 0  # those when all had joined and torch has let it go on; 0: not yet


@kind(27)
class Cleared(TraceEvent):
    """zero_grad was called between two of the backward passes of one step: what the earlier ones had added is gone."""

    optimizer: int = 0
    step: int = 0


@kind(30)
class Orphaned(TraceEvent):
    """Parameters get gradients, and no optimizer holds them. The site is where the optimizer was made."""

    names: Names = ()  # of the first of them
    later: bool = False  # they came after the optimizer
    stale: int = 0  # of the optimizer's parameters, those that no module holds and that have no gradient
    own: int = 0  # parameters of the optimizer
    count: int = 0
    nbytes: int = 0


@kind(31)
class ClipNorm(TraceEvent):
    """A clipping by norm."""

    whole: bool = False  # of a DTensor: the norm is that of all ranks
    step: int = 0
    norm: float = 0.0
    unaveraged: bool = False  # of what a DistributedDataParallel has accumulated under no_sync
    limit: float = 0.0  # `max_norm`: above it gradients are scaled; 0: not known


@kind(32)
class BackwardRng(TraceEvent):
    """The random state with which a backward begins. The site is the line that last gave the generator a state, if any did."""

    digest: str = ""
    # The first active one, `drop (Dropout 0.1)`, and what it was given; "": none, and the state is not that of the pass before.
    dropout: str = ""
    backward: int = 0

    @property
    def module(self) -> str:
        """The dropout, without what it was given."""
        return self.dropout.partition(NAME_SEPARATOR)[0]

    @property
    def given(self) -> str:
        """A digest of what the operation before the first dropout of the graph has kept; "" where none was found."""
        return self.dropout.partition(NAME_SEPARATOR)[2]


@kind(33)
class UnkeptRng(TraceEvent):
    """A checkpointed function drew random numbers that are not restored."""

    function: str = ""
    step: int = 0


@kind(34)
class DetachedGather(TraceEvent):
    """Features were gathered, or summed in place, without their gradient, and trained on."""

    operation: str = ""  # with `DETACHED` behind it: the source took the gradient off what it gathered
    reached: bool = False  # the loss has another way to what was gathered
    step: int = 0
    nbytes: int = 0
    ranks: Ranks = ()  # that were summed in place; of a gathering it is not told
    only: bool = False  # no other way leads from the loss to what is trained than through the sums
    loss: float = math.nan  # in host memory, when it was summed in place


@kind(75)
class GatheredBesideOwn(TraceEvent):
    """Features were gathered without their gradient, the rank's own put back, and the loss is also made of a parameter that no
    wrapper averages."""

    name: str = ""  # of the parameter
    value: int = 0  # its digest then
    step: int = 0
    loss: float = math.nan  # in host memory


@kind(76)
class GivenParts(TraceEvent):
    """What a wrapped model was given in one forward: digests of the first elements of each tensor on the host, and shapes."""

    digests: Names = ()
    shapes: Names = ()
    step: int = 0
    place: int = 0  # among the forwards of wrapped models between two steps


@kind(35)
class Deprecated(TraceEvent):
    name: str = ""  # that was used


@kind(37)
class Copied(TraceEvent):
    """A copy of what is trained was found. The site is where it was made, where that is known."""

    name: str = ""  # as in its TENSOR: the variable that holds it
    module: str = ""  # class
    step: int = 0


@kind(78)
class CalledWith(TraceEvent):
    """A module computed with tensors that were handed to it for its parameters (functional_call), none of which is trained."""

    module: str = ""  # class
    value: int = 0  # digest of them all
    step: int = 0
    own: int = 0  # the same of the module's own parameters


@kind(79)
class SentUnchanged(TraceEvent):
    """A broadcast whose root sends from one line the tensor with the bits that it had before, in other steps."""

    elements: int = 0  # 0: it has changed after all
    times: int = 0
    step: int = 0


@kind(36)
class CopyUsed(TraceEvent):
    """The first forward that was seen of a copy of what is trained: the teacher, the target network, the policy that plays."""

    name: str = ""  # as in its TENSOR
    step: int = 0


@kind(68)
class BesideUsed(TraceEvent):
    """The first forward that was seen of a module that holds buffers and no parameters, and that gave a tensor of the shape of
    what it was given, or a loss: it changes what the model is trained on, or by. One without gradients is noted by itself."""

    name: str = ""  # its buffers' names begin with it and a dot
    step: int = 0
    loss: bool = False  # what it gave is one number with a graph behind it
    no_grad: bool = False  # gradients were off: perhaps nobody trains on what it gave


MOST_MODES = 64  # notes of one optimizer: a model may be switched again and again


@kind(72)
class ModesSeen(TraceEvent):
    """How many layers that compute in another way while they train (dropout, batch normalisation) are in training mode, and in
    eval mode, when an optimizer steps; noted when that has changed. The site is where it steps."""

    optimizer: int = 0
    step: int = 0
    training: int = 0
    evaluating: int = 0
    whole: bool = False  # a model as a whole was put into eval mode


@kind(74)
class RowsEvaluated(TraceEvent):
    """Rows went through a model in eval mode, up to the next step. The site is where it was called first."""

    rows: int = 0
    calls: int = 0
    step: int = 0  # the last one before
    elements: int = 0  # of those rows: pixels, or tokens with their padding


@kind(77)
class GradientsUnused(TraceEvent):
    """Gradients were computed this often, and no optimizer has stepped: the program may change its weights by itself."""

    times: int = 0


# -- memory ------------------------------------------------------------------------------------------------------------------


@kind(40)
class Evaluated(TraceEvent):
    """Batches went through a model in eval mode with a graph behind them."""

    label: str = ""  # the variable that keeps most of it
    how: str = ""  # see `probe.memory.evaluations`
    nodes: int = 0
    nbytes: int = 0
    batches: int = 0


@kind(41)
class OutOfMemory(TraceEvent):
    """The uncaught exception says that memory could not be allocated."""

    phase: str = ""
    resident: int = 0  # bytes
    allocated: int = 0  # bytes, on the device
    limit: int = 0  # bytes; 0: not known


@kind(42)
class DeviceContext(TraceEvent):
    """This process has a context on a device."""

    device: str = ""
    own: bool = False
    cached: int = 0  # bytes


@kind(43)
class FullPrecision(TraceEvent):
    """All matrix products are in fp32."""

    device: str = ""
    mode: str = ""  # `tf32`, `ieee`
    capability: int = 0  # times ten
    nbytes: int = 0


@kind(44)
class EvaluationGrew(TraceEvent):
    """An evaluation keeps what it computes: bytes that grow with each of its batches."""

    label: str = ""  # the variable that grew most, "" when none was seen
    library: str = ""  # the file of the library whose variable it is, "" for the user's
    held: int = 0  # bytes by which it grew
    grown: int = 0  # bytes since its fourth batch; little: one at this line that did not grow
    nbytes: int = 0  # of the process and on its device then
    batches: int = 0


# -- speed -------------------------------------------------------------------------------------------------------------------


@kind(50)
class UnusedSearch(TraceEvent):
    """DistributedDataParallel looks for unused parameters; rewritten as it goes on."""

    ranks: Ranks = ()
    walks: int = 0
    looked: int = 0  # steps in which it was read what the search found
    left_out: int = 0  # of those, the ones with a parameter that some rank did not use
    nanoseconds: int = 0  # of all walks


@kind(51)
class DataParallelMade(TraceEvent):
    devices: Names = ()


@kind(52)
class DeviceWait(TraceEvent):
    """Python waited for the device on one line."""

    by: str = ""  # `item`, `cpu`, ...
    times: int = 0
    steps: int = 0  # in which these were counted
    nanoseconds: int = 0


@kind(53)
class GarbageCollected(TraceEvent):
    """Python's garbage collector stopped the rank for long; rewritten as it goes on. The site is where the longest one struck."""

    count: int = 0  # of 3 ms or more
    nanoseconds: int = 0
    longest: int = 0  # nanoseconds


@kind(54)
class Compiled(TraceEvent):
    """torch.compile was at work, and for how long."""

    compile_id: str = ""  # `0/2`: the third version of the first function
    reason: str = ""  # the guard that sent it there
    step: int = 0
    nanoseconds: int = 0


@kind(55)
class CoreShare(TraceEvent):
    """What the rank computes with, and how long its main thread ran and stood in the queue for a core; rewritten as it goes on.

    The site is where the number of threads was set, "" where it was not.
    """

    cpus: Ranks = ()  # the numbers of the cores that the rank may use
    threads: int = 0  # of one operation, torch.get_num_threads()
    quota: float = 0.0  # cores that the cgroup grants, 0 for no limit
    steps: int = 0  # in which these were counted
    ran_ns: int = 0
    queued_ns: int = 0


# -- checkpoints -------------------------------------------------------------------------------------------------------------


@kind(60)
class Saving(TraceEvent):
    """A checkpoint began to be written at `at_ns`. `done_ns`: when that was over, 0: not yet, -1: it failed."""

    path: str = ""  # absolute
    by: str = ""  # `torch.save`, `dcp.save`, `dcp.async_save`, `safetensors`
    step: int = 0
    done_ns: int = 0
    tensors: int = 0  # in it
    wrapped: int = 0  # of those, the ones whose names begin with a wrapper's prefix
    # among so many ranks the parameters are sharded of which it holds this rank's shards; 0: whole tensors
    parts: int = 0


@kind(82)
class SavedBeside(TraceEvent):
    """What a checkpoint holds beside the trained tensors themselves (one of safetensors: all of it); of the first ones only."""

    path: str = ""  # as in its `Saving`
    names: Names = ()  # of those tensors, each once; () also where they are `many`
    many: bool = False


@kind(61)
class Loading(TraceEvent):
    """A checkpoint began to be read at `at_ns`. `done_ns`: when that was over, 0: not yet, -1: it failed."""

    path: str = ""
    by: str = ""  # `torch.load`, `dcp.load`
    step: int = 0
    done_ns: int = 0
    placed: bool = False  # somebody said onto which device
    foreign: int = 0  # bytes that came to lie on another device than the rank's own


@kind(62)
class Renamed(TraceEvent):
    """What had been saved got another name."""

    path: str = ""
    to: str = ""


@kind(63)
class StateLoaded(TraceEvent):
    """load_state_dict of something."""

    what: str = ""  # `module`, `optimizer`, `scheduler`, `scaler`
    names: Names = ()  # the class, then the first that is missing and the first that is unexpected
    missing: int = 0
    unexpected: int = 0
    own: int = 0  # entries of its own state
    strict: bool = True
    step: int = 0


@kind(64)
class Unfinished(TraceEvent):
    """The process ends while a thread that saves is still at work."""

    thread: str = ""
    daemon: bool = False
    step: int = 0


@kind(65)
class Pointer(TraceEvent):
    """A small file beside the checkpoints that names one of them, as it was when the process ended."""

    path: str = ""
    names: Names = ()  # the target, absolute; then of what is there the names that differ from its in their numbers alone
    there: bool = False

    @property
    def target(self) -> str:
        return self.names[0] if self.names else ""

    @property
    def beside(self) -> Names:
        return self.names[1:]


@kind(66)
class Untied(TraceEvent):
    """load_state_dict(assign=True) gave parameters of their own to names that had shared one."""

    owner: str = ""  # the class that was loaded into
    names: Names = ()


@kind(67)
class SavedAside(TraceEvent):
    """A thread besides the main one has saved tensors that lie where an optimizer changes them."""

    path: str = ""
    thread: int = 0
    live: int = 0  # such tensors in it
    first: int = 0  # the place of the first of them among all that optimizers hold, from 1
    step: int = 0  # when it began
    done_step: int = 0  # when it was over


@kind(73)
class FileWritten(TraceEvent):
    """A line of the user's own wrote a file that is no checkpoint, or gave it its name."""

    path: str = ""  # absolute
    by: str = ""  # `os.replace`, `numpy.savez`, `json.dump`
    content: int = 0  # digest of it; 0: not known
    step: int = 0


@kind(70)
class KeySet(TraceEvent):
    """The last keys of a store that a line has set."""

    keys: Names = ()  # () where it is not known which


@kind(71)
class KeyAwaited(TraceEvent):
    """The last keys of a store that a line has waited for."""

    keys: Names = ()  # () where it is not known which
    over: bool = False  # it has come back
