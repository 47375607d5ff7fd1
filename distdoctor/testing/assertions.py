"""Assertions for tests that run in ranks, and on diagnoses.

What compares ranks raises the same AssertionError on all of them. It needs a process group, and is no training code: it gathers
what it compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distdoctor.errors import WrongUse
from distdoctor.recording.open import open_run
from distdoctor.recording.rank_set import named
from distdoctor.recording.trace.layout import POINT_TO_POINT, ROOTED, ReduceOp

if TYPE_CHECKING:
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.recording.recording import Call, RankTrace, SourceLine

_SHOWN = 3
_PATIENCE = timedelta(seconds=30)
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TOLD = ("sampler", "batch_sampler", "dataset")
_blocks = 0


def assert_same_on_all_ranks(what: Any, *, group: Any = None) -> None:
    """Every rank holds the same bits: a module's parameters and buffers, a state dict, a tensor, or any other value.

    Shards are no copies: of a DTensor only what is replicated is compared.
    """
    __tracebackhide__ = True
    mine = {name: (_digest(value), _in_words(value)) for name, value in _parts(what).items()}
    ranks, gathered = _gathered(mine, group)
    names = list(dict.fromkeys(name for values in gathered for name in values))
    held = {name: [values.get(name, ("", "missing")) for values in gathered] for name in names}
    lines = [_difference(name, values, ranks) for name, values in held.items() if len({*values}) > 1]
    if lines:
        raise AssertionError(f"{len(lines)} of {len(names)} differ between ranks\n" + _first(lines))


def assert_disjoint_samples(loader: Any, epochs: int = 2, *, padding: int | None = None, group: Any = None) -> None:
    """No sample is drawn by two ranks in one epoch, nor twice by one, but for `padding` repetitions (by default what makes the
    shares of all ranks equal: one less than there are ranks).

    Only indices are read of map-style data; the batches of an iterable data set are read, and told apart by their content. The
    loader, its sampler or its data set are told the epoch where they have a `set_epoch`.
    """
    __tracebackhide__ = True
    for epoch in range(epochs):
        ranks, gathered = _gathered(_samples(loader, epoch), group)
        allowed = len(ranks) - 1 if padding is None else padding
        drawn = Counter(sample for samples in gathered for sample in samples)
        repeated = [sample for sample, times in drawn.items() if times > 1]
        extra = drawn.total() - len(drawn)
        if extra > allowed:
            lines = [f"{sample}: {_by_whom(sample, gathered, ranks)}" for sample in repeated]
            raise AssertionError(
                f"{len(repeated)} of {len(drawn)} samples were drawn more than once in epoch {epoch} "
                f"({extra} repetitions, {allowed} allowed)\n" + _first(lines, _not_divided(gathered))
            )


class _Block(contextlib.ContextDecorator):
    """The two halves of a generator, around a block. Of what the second one raises, pytest shows the line of the `with`."""

    def __init__(self, halves: Callable[[], Iterator[None]]) -> None:
        self._halves = halves
        self._entered: list[Iterator[None]] = []

    def __enter__(self) -> None:
        __tracebackhide__ = True
        halves = self._halves()
        next(halves)
        self._entered.append(halves)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        __tracebackhide__ = True
        halves = self._entered.pop()
        if kind is None:
            next(halves, None)


def assert_same_collectives() -> contextlib.AbstractContextManager[None]:
    """`with assert_same_collectives(): ...`: inside, every rank calls the same collectives in the same order, by operation, type,
    shape, reduction and root; those that torch issues itself (DDP, FSDP) count as well.

    Needs the recording of `@pytest.mark.distdoctor` or `distdoctor run`. A difference at which the ranks hang is told by them.
    """
    return _Block(_same_collectives)


def _same_collectives() -> Iterator[None]:
    __tracebackhide__ = True
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    global _blocks
    _blocks += 1
    before = len(_calls())
    rank, size = dist.get_rank(), dist.get_world_size()
    store = c10d.PrefixStore(f"distdoctor-same-collectives-{_blocks}", c10d._get_default_store())
    store.set(f"before-{rank}", str(before))
    yield
    store.set(str(rank), json.dumps(_calls()[before:]))
    missing = [other for other in range(size) if not _comes(store, str(other))]
    if missing:
        _compare_with(missing, store, size)
        raise AssertionError(f"{named(missing)} did not come to the end of the block within {_PATIENCE.seconds} s")
    _compare_calls([json.loads(store.get(str(other))) for other in range(size)])
    store.set(f"read-{rank}", "1")  # whoever keeps the store has to stay until everybody has read
    for other in range(size):
        _comes(store, f"read-{other}")


def assert_peak_memory(limit: int | str) -> contextlib.AbstractContextManager[None]:
    """`with assert_peak_memory("200 MiB"): ...`: inside, this rank's memory grows by no more than this at its peak.

    Device memory as torch's allocator counts it where CUDA is in use, else the resident memory of the process.
    """
    return _Block(partial(_peak_memory, limit))


def _peak_memory(limit: int | str) -> Iterator[None]:
    __tracebackhide__ = True
    allowed = _bytes(limit)
    begin, peak, what = _memory_meter()
    before = begin()
    yield
    grown = peak() - before
    if grown > allowed:
        raise AssertionError(f"{what} grew by {grown / (1 << 20):.1f} MiB, {allowed / (1 << 20):.1f} MiB are allowed")


def assert_healthy(diagnosis: Diagnosis | Mapping[str, Any], ignore: Iterable[str] = ()) -> None:
    """No error and no warning was found, the job did not fail, and checks were made. `ignore`: codes or slugs that are accepted.

    Takes what the fixture `diagnose` and `distdoctor.diagnose` return. Notes are no illness.
    """
    __tracebackhide__ = True
    words = {ignore} if isinstance(ignore, str) else {*ignore}
    require_known_checks("ignore", words)
    accepted = {word.strip().lower() for word in words}
    report = diagnosis if isinstance(diagnosis, Mapping) else _as_report(diagnosis)
    ill = [
        one
        for one in report["findings"]
        if one["severity"] in ("error", "warning") and not {one["code"].lower(), one["slug"].lower()} & accepted
    ]
    if ill:
        raise AssertionError(f"{len(ill)} finding{'' if len(ill) == 1 else 's'}\n" + "\n".join(map(_line, ill)))
    if not report["findings"] and report["job"].get("exit_code"):
        raise AssertionError(f"the job failed with exit code {report['job']['exit_code']}, and no check found out why")
    if not report["examined"]:
        raise AssertionError("nothing was examined: no rank left a recording")


def require_known_checks(argument: str, words: Collection[str]) -> None:
    """WrongUse: one of these words for `argument` is neither the code nor the slug of an installed check."""
    __tracebackhide__ = True
    from distdoctor import plugins

    checks = plugins.load().checks.values() if words else ()
    known = {word for one in checks for name in (one.code, one.slug, *one.formerly) for word in name.lower().split()}
    unknown = sorted(word for word in words if word.strip().lower() not in known)
    if unknown:
        raise WrongUse(f"{argument}={unknown[0]!r}: there is no such check", way_out="`distdoctor rules` lists them.")


def _gathered(mine: Any, group: Any) -> tuple[list[int], list[Any]]:
    """(the ranks of the group, what each of them has)."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise WrongUse(
            "there is no process group whose ranks could be compared",
            way_out="Call this in a test with @pytest.mark.distdoctor, or after init_process_group.",
        )
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    found: list[Any] = [None] * len(ranks)
    dist.all_gather_object(found, mine, group=group)
    return ranks, found


def _parts(what: Any) -> dict[str, Any]:
    import torch

    if isinstance(what, torch.nn.Module):
        return {**dict(what.named_parameters()), **dict(what.named_buffers())}
    return {str(name): value for name, value in what.items()} if isinstance(what, Mapping) else {"the value": what}


def _digest(value: Any) -> str:
    """Equal for equal bits. Of a DTensor that is sharded, only what all ranks have in common."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        if not all(placement.is_replicate() for placement in value.placements):
            return f"{tuple(value.shape)} {value.placements}"
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        plain = data.reshape(-1).view(torch.uint8) if data.numel() else data
        return f"{tuple(data.shape)} {data.dtype} {hashlib.sha256(plain.numpy().tobytes()).hexdigest()}"
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def _in_words(value: Any) -> str:
    """`[2] float32 0.0, 1e-07`, `[4, 4] float32, norm 1.23`, or any other value in short."""
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(value, torch.Tensor):
        return reprlib.repr(value)
    words = f"{[*value.shape] or ''} {str(value.dtype).removeprefix('torch.')}".strip()
    if isinstance(value, DTensor):
        return f"{words} {value.placements}"
    data = value.detach().cpu().flatten()
    if data.numel() <= _SHOWN:
        values = data.double() if data.is_floating_point() else data
        return f"{words} {', '.join(f'{one:.9g}' if isinstance(one, float) else str(one) for one in values.tolist())}".strip()
    norm = torch.linalg.vector_norm(data.to(torch.complex128 if data.is_complex() else torch.float64))
    return f"{words}, norm {norm.item():.9g}"


def _difference(name: str, values: list[tuple[str, str]], ranks: list[int]) -> str:
    """`0.bias: [1] float32 0.0 on rank 0, [1] float32 1e-07 on rank 1`, the largest camp first. `values`: digest, in words."""
    camps: dict[tuple[str, str], list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        camps.setdefault(value, []).append(rank)
    largest_first = sorted(camps.items(), key=lambda camp: -len(camp[1]))
    if len({words for _, words in camps}) == 1:
        return f"{name}: other bits on {', on '.join(named(camp) for _, camp in largest_first)} ({values[0][1]})"
    told = [f"{words} on {named(camp)}" for (_, words), camp in largest_first]
    return f"{name}: {', '.join(told[:_SHOWN])}" + (f", and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


def _not_divided(gathered: list[Any]) -> list[str]:
    """What to do where every rank has drawn all that the others have."""
    drawn = [Counter(samples) for samples in gathered]
    if len(drawn) < 2 or any(one != drawn[0] for one in drawn):
        return []
    return [
        "Every rank drew the same samples: give the loader a DistributedSampler, or let an iterable data set yield each "
        "rank's share."
    ]


def _first(lines: list[str], last: Iterable[str] = ()) -> str:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join([*lines[:_SHOWN], *more, *last])


def _samples(loader: Any, epoch: int) -> list[Any]:
    """What this rank draws in one epoch: indices, or digests of samples where there are none."""
    for owner in (loader, *(getattr(loader, name, None) for name in _TOLD)):
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)
    batched = getattr(loader, "batch_sampler", None)
    drawn = batched if batched is not None else getattr(loader, "sampler", None)
    if drawn is None or _is_iterable(loader):
        return [digest for batch in loader for digest in _rows(batch)]
    return [int(index) for batch in drawn for index in (batch if isinstance(batch, list | tuple) else [batch])]


def _is_iterable(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(getattr(loader, "dataset", None), IterableDataset)


def _rows(batch: Any) -> list[str]:
    """A digest of each sample of a batch: the n-th row of all its tensors, of equal length, is the n-th sample."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    count = min((len(tensor) for tensor in tensors), default=0)
    if not count:
        return [f"{reprlib.repr(leaf)} ({_digest(leaf)[:12]})" for leaf in leaves]
    return [_row([tensor[n] for tensor in tensors]) for n in range(count)]


def _row(tensors: list[Any]) -> str:
    """`[3] int64 4, 5, 6 (500c96b37900)`: the first tensor of a sample, and a digest of all of them."""
    digest = hashlib.sha256("".join(map(_digest, tensors)).encode()).hexdigest()[:12]
    return f"{_in_words(tensors[0])} ({digest})"


def _by_whom(sample: Any, gathered: list[Any], ranks: list[int]) -> str:
    times = {rank: samples.count(sample) for rank, samples in zip(ranks, gathered, strict=True) if sample in samples}
    if len(times) == 1:
        ((rank, count),) = times.items()
        return f"{count} times by rank {rank}"
    return f"by {named(times)}"


def _compare_with(missing: list[int], store: Any, size: int) -> None:
    """AssertionError where what the ranks that are still inside have recorded differs from what the others called."""
    begun = [rank for rank in range(size) if rank not in missing or store.check([f"before-{rank}"])]
    calls = {
        rank: _calls(rank)[int(store.get(f"before-{rank}")) :] if rank in missing else json.loads(store.get(str(rank)))
        for rank in begun
    }
    members = {group.name: group.ranks for log in _recorded().values() for group in log.group_list()}
    _compare_calls([calls.get(rank, []) for rank in range(size)], members, unfinished=missing)


def _calls(of_rank: int | None = None) -> list[list[str]]:
    """The collectives that a rank has recorded, by default this one: (group, what has to agree, where)."""
    import torch.distributed as dist

    log = _recorded().get(dist.get_rank() if of_rank is None else of_rank)
    if log is None:  # on another host
        return []
    calls = [log.call(row) for row in log.calls]
    return [
        [
            call.group,
            _signature(call),
            _place(call.site),
        ]
        for call in calls
        if call.op not in POINT_TO_POINT
    ]


def _signature(call: Call) -> str:
    """What the ranks of a group have to agree on: `all_reduce [3] float32 sum`."""
    parts = [call.op.word, str(call.shape), str(call.dtype)]
    if call.reduce_op not in (ReduceOp.NONE, ReduceOp.UNSEEN):
        parts.append(call.reduce_op.name.lower())
    if call.op in ROOTED and call.root >= 0:
        parts.append(f"root {call.root}")
    return " ".join(filter(None, parts))


def _place(site: SourceLine) -> str:
    """`tests/test_step.py:41 test_step`, relative to the current folder where it lies below."""
    return str(replace(site, path=site.path.removeprefix(f"{os.getcwd()}{os.sep}")))


def _recorded() -> Mapping[int, RankTrace]:
    """The ranks that are recorded on this host."""
    probe = sys.modules.get("distdoctor.probe.start")
    folder = probe.recorded_in() if probe is not None else None
    if folder is None:
        raise WrongUse(
            "no collective is recorded here",
            way_out="Mark the test with @pytest.mark.distdoctor, or start the script by `distdoctor run`.",
        )
    return open_run(Path(folder), only=frozenset({"calls", "groups"})).ranks


def _comes(store: Any, key: str) -> bool:
    try:
        store.wait([key], _PATIENCE)
    except Exception:  # torch's own class for a timeout of a store
        return False
    return True


def _compare_calls(
    by_rank: list[list[list[str]]],
    members_of: Mapping[str, Collection[int]] | None = None,
    unfinished: Collection[int] = (),
) -> None:
    """AssertionError at the first collective of a group that its ranks do not call alike. What `unfinished` ranks have not
    called, they may call yet. Of a group that is not in `members_of`, only those count that have called."""
    for group in dict.fromkeys(call[0] for calls in by_rank for call in calls):
        lists = {rank: [call for call in calls if call[0] == group] for rank, calls in enumerate(by_rank)}
        known = (members_of or {}).get(group, ())
        members = {rank: calls for rank, calls in lists.items() if calls or rank in known}
        for number in range(max(map(len, members.values()))):
            at = {
                rank: calls[number] if number < len(calls) else ["", "nothing", ""]
                for rank, calls in members.items()
                if number < len(calls) or rank not in unfinished
            }
            if len({call[1] for call in at.values()}) > 1:
                lines = [f"rank {rank}: {call[1]}  {call[2]}".rstrip() for rank, call in at.items()]
                raise AssertionError(f"ranks disagree on collective {number + 1} of the block\n" + "\n".join(lines))


def _bytes(limit: int | str) -> int:
    if isinstance(limit, int):
        return limit
    match = re.fullmatch(r"\s*([\d.]+)\s*(B|KiB|MiB|GiB)\s*", limit)
    if match is None:
        raise WrongUse(f"{limit!r} is no amount of memory", way_out='Write "200 MiB", "1.5 GiB" or a number of bytes.')
    return int(float(match[1]) * _UNITS[match[2]])


def _memory_meter() -> tuple[Any, Any, str]:
    """(begin and return what is in use, the peak since then, what is measured)."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]

        def begin() -> int:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()

        return begin, torch.cuda.max_memory_allocated, "memory of the device"

    def begin_here() -> int:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on: proc_pid_clear_refs(5)
        return _status("VmRSS")

    return begin_here, lambda: _status("VmHWM"), "resident memory"


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) << 10 if found else 0


def _as_report(diagnosis: Diagnosis) -> dict[str, Any]:
    findings = [
        {
            "code": one.code,
            "slug": one.slug,
            "severity": one.severity.name.lower() if one.severity is not None else "note",
            "ranks": list(one.ranks),
            "title": one.title,
            "place": {"path": one.place.path, "line": one.place.line},
        }
        for one in diagnosis.findings
    ]
    return {"findings": findings, "examined": diagnosis.examined, "job": {"exit_code": diagnosis.job.exit_code}}


def _line(finding: Mapping[str, Any]) -> str:
    place = finding.get("place") or {}
    where = f"{place['path']}:{place['line']}" if place.get("path") else ""
    whose = named(finding["ranks"]) if finding["ranks"] else ""
    return " ".join(filter(None, (finding["code"], finding["severity"], whose, where, finding["title"])))
