"""What a rank's training was made of when it began and whenever it was saved, in files beside the trace.

Who goes on from there is compared with them (DD706): a later run of the same program, or this one when it builds its optimizer
anew. Nothing is read back here, and nothing is kept. The start is looked at once, before the first forward that trains; a save,
and training that begins again, only while all of it has cost less than `SHARE` of the time, and `FREE_SECONDS`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.checkpoints.beside_model import alive_beside, saved_beside
from distdoctor.probe.checkpoints.live_state import (
    LiveState,
    Named,
    by_parameter,
    digests_of,
    fits_into,
    holds_copies,
    holds_live,
    is_sharded,
    names_beside,
    rng_digest,
    shards_of,
    storages_of,
    trained_in,
)
from distdoctor.probe.checkpoints.own_state import own_digests, own_in, own_tensors
from distdoctor.probe.checkpoints.tensors import holds_schedule, tensors_in
from distdoctor.probe.compile_guard import not_traced, watched
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import local
from distdoctor.probe.tensors.module_trees import ModuleTrees, plain_name
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.state_file import (
    AGAIN,
    AGAIN_NUMBER,
    BESIDE,
    COPIES,
    KEPT_SAVES,
    MOMENTS,
    OWN,
    SAVE,
    START,
    WEIGHTS,
    file_name,
)

SHARE = 0.005  # of the time since the rank began
FREE_SECONDS = 0.5
PASSES = 2  # backward passes before which the random state is noted
LOOKS = frozenset(1 << power for power in range(1, 11))  # passes before which the user's own objects are looked at
MOST_WEIGHTS = 64  # that are looked at again in a script that steps by itself
MOST_FORWARDS = 20_000  # calls of modules in which the first one that trains is looked for
# Options that name a save to go on from, and words that ask for it: `--init_from=resume`. A path is no word.
_RESUMES = re.compile(r"resum|contin|restart|restor|ckpt|checkpoint", re.I)
_SAVES = re.compile(r"dir|folder|root|every|each|interval|freq|steps|keep|save|out|activation", re.I)
_GO_ON = re.compile(r"resum\w*|contin\w*|restart\w*|restor\w*", re.I)


def _asks_to_go_on(word: str) -> bool:
    """Whether an argument of the program says that its training goes on: `--resume-from`, `trainer.ckpt_path=...`, `resume`."""
    name, has_value, value = word.partition("=")
    if not (has_value or word.startswith("-")):
        name, value = "", word
    if value.lower() in ("false", "no", "none", "null", "0"):
        return False
    asks = bool(_RESUMES.search(name)) and (bool(_GO_ON.search(name)) or not _SAVES.search(name))
    return asks or bool(_GO_ON.fullmatch(value))


class Snapshots:
    """Writes the start and the saves down. All that torch calls is guarded by the stream."""

    def __init__(self, rank: Rank, trace: TraceWriter, guarded: Callable[[Any], Any]) -> None:
        self.rank, self.trace, self.guarded = rank, trace, guarded
        trees = ModuleTrees(guarded)
        trees.install()
        self.live = LiveState(trees)
        self.began = time.monotonic()
        self.spent = 0.0
        self._start: dict[str, Any] = {}
        self._rng: list[str] = []
        self._passes = self._forwards = self._saves = 0
        # when, number, what was written of the last save
        self._last: tuple[tuple[int, int], int, dict[str, Any]] | None = None
        self._hook: Any = None
        self._has_read = False  # a checkpoint
        self._by_hand = False  # the start is that of a script which steps by itself
        self._may_begin_anew = False  # one was read since the newest start, by a script that steps by itself
        self._may_go_on = False  # since the newest start something was saved or read, from which to go on
        self._trained_with = 0  # how much was made when the newest backward pass began
        self._made_before = 0  # what is left out of the newest start

    def install(self) -> None:
        kinds = (
            (torch.optim.Optimizer, "optimizers"),
            (torch.optim.lr_scheduler.LRScheduler, "schedulers"),
            (torch.amp.GradScaler, "scalers"),
        )
        for owner, kind in kinds:
            wrappers.listen(owner, "__init__", before=self.guarded(self._making(kind)))
        wrappers.listen(torch.autograd, "backward", before=self.guarded(self._backward))
        wrappers.listen(torch.autograd, "grad", before=self.guarded(self._grad))
        self._listen()

    def _making(self, kind: str) -> Callable[[Any], None]:
        def made(thing: Any) -> None:
            self.live.made(kind, thing)
            self._wait_for_training()

        return made

    def reads(self) -> None:
        """A checkpoint is read."""
        self._has_read = True
        self._may_begin_anew = bool(self._start) and not self.live.has_optimizer
        self.may_go_on()

    def may_go_on(self) -> None:
        """A checkpoint is written or read: training with an optimizer that was made anew may go on from it."""
        self._may_go_on = bool(self._start)
        self._wait_for_training()

    def _wait_for_training(self) -> None:
        if self._may_go_on and self.live.has_new_optimizer(self._trained_with) and self._may_spend():
            self._may_go_on, self._made_before = False, self._trained_with
            if self._hook is None:
                self._listen()

    @property
    def _step(self) -> int:
        """Of a script that steps by itself the backward passes that have begun."""
        return self.rank.step if self.live.has_optimizer else self._passes

    def _may_spend(self) -> bool:
        return self.spent <= FREE_SECONDS + SHARE * (time.monotonic() - self.began)

    # -- the start -----------------------------------------------------------------------------------------------------------

    def _forward(self, module: nn.Module, _: Any) -> None:
        """The first forward in training mode of a module that an optimizer trains is the start."""
        self._forwards += 1
        if self._forwards > MOST_FORWARDS:
            self._stop_listening()
        if not module.training or not torch.is_grad_enabled() or watched() or not self.live.optimizers():
            return
        trained = self.live.trained(self._made_before)
        if any(id(parameter) in trained for parameter in module.parameters()):
            self._stop_listening()
            self._begin()

    def _listen(self) -> None:
        self._forwards = 0
        self._hook = nn.modules.module.register_module_forward_pre_hook(not_traced(self.guarded(self._forward)))

    def _stop_listening(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _begin(self) -> None:
        began = time.thread_time()
        tensors = self.live.tensors(self._made_before)
        beside = alive_beside(tensors) if self._has_read else None
        own = own_digests(own_tensors(storages_of(tensors)))
        self._may_begin_anew, by_hand = False, not self.live.has_optimizer
        if self._start and self._by_hand == by_hand:
            self._write(AGAIN_NUMBER, self._taken(AGAIN, tensors, beside, own, self._made_before))
        else:
            self._by_hand = by_hand
            self._start = self._taken(START, tensors, beside, own)
            self._start["resumes"] = any(map(_asks_to_go_on, sys.argv[1:]))
            self._write(0, self._start)
        self.spent += time.thread_time() - began

    def _grad(self, outputs: Any) -> None:
        """Of a script that steps by itself it is a backward pass, beside optimizers a penalty or a curvature."""
        if not self.live.has_optimizer:
            self._backward(outputs)

    def _backward(self, _: Any) -> None:
        self._trained_with = self.live.count
        self._passes += 1
        anew = self._may_begin_anew or not (self._start or self.live.has_optimizer)
        early, looks = len(self._rng) < PASSES, self._passes in LOOKS
        if not (anew or early or looks) or torch._C._current_graph_task_id() != -1 or watched():
            return
        if anew and self._may_spend():
            self._begin()
        if early:
            self._rng.append(rng_digest())
        if looks and self._start and self._may_spend():
            self._look()
        elif early and len(self._rng) == PASSES and self._start:
            self._start["rng"] = self._rng
            self._write(0, self._start)

    def _look(self) -> None:
        """What the user's objects hold before this pass: whether ranks share it shows. Of a script that steps by itself also the
        weights, which nobody else looks at. No device is waited for in a step."""
        began = time.thread_time()
        tensors = self.live.tensors()
        own = own_digests(_on_cpu(own_tensors(storages_of(tensors))))
        self._start["looks"][str(self._passes)] = _as_text(own)
        if self._by_hand and not self.live.has_optimizer:
            weights = own_digests(_on_cpu(dict(list(tensors[WEIGHTS].items())[:MOST_WEIGHTS])))
            self._start["weights_at"][str(self._passes)] = _as_text(weights)
        self._start["rng"] = self._rng
        self._write(0, self._start)
        self.spent += time.thread_time() - began

    # -- saves ---------------------------------------------------------------------------------------------------------------

    def saving(self, state: Any, path: str) -> None:
        """A checkpoint is about to be written; `state` is None where it was copied already."""
        if threading.current_thread() is not threading.main_thread() or watched():
            return
        if not (self.live.optimizers() or (self._by_hand and not self.live.has_optimizer)):
            return
        self.may_go_on()
        now = self._step, self._trained_with  # a training that is built anew counts its steps from nought
        if self._last is not None and self._last[0] == now:
            self._last[2]["holds_schedule"] |= holds_schedule(state)
            self._last[2]["holds_copies"] |= holds_copies(state, self.live.tensors()[COPIES])
            if state is not None and self._may_spend():
                began = time.thread_time()
                own = own_in(state, own_tensors(storages_of(self.live.tensors())))
                self.spent += time.thread_time() - began
                self._last[2]["digests"][OWN] |= _as_text(own)
            self._add_path(path)
            return
        if not self._step or not self._may_spend():
            return
        began = time.thread_time()
        tensors = self.live.tensors()
        own = own_in(state, own_tensors(storages_of(tensors))) if state is not None else {}
        if state is None or own or holds_live(state, tensors):
            number = 1 + self._saves % KEPT_SAVES
            self._saves += 1
            document = self._taken(SAVE, tensors, saved_beside(state, tensors), own)
            document["holds_schedule"] = holds_schedule(state)
            document["holds_copies"] = holds_copies(state, tensors[COPIES])
            self._last = (now, number, document)
            self._add_path(path)
        self.spent += time.thread_time() - began

    def are_of_the_model(self, names: Iterable[str]) -> bool:
        """Whether some of these are names of what an optimizer of this rank trains."""
        weights = self.live.tensors()[WEIGHTS] if self.live.optimizers() else {}
        return any(plain_name(name).removeprefix("module.") in weights for name in names)

    def trained_in(self, state: Any) -> tuple[int, int]:
        """How many tensors of it an optimizer changes where they lie, and the place of the first among all that is trained."""
        return trained_in(state, list(self.live.trained().values()))

    def names_beside(self, state: Any) -> tuple[str, ...] | None:
        """The names of its tensors that are not the trained ones themselves; None where they are many."""
        return names_beside(state, list(self.live.trained().values()))

    def looks_trained(self, state: Any) -> bool:
        """Whether a tensor in it has the shape of one that an optimizer trains; True where nobody can say."""
        shapes = {one.shape for one in self.live.trained().values()}
        tensors = [one for _, one in tensors_in(state)]
        return not shapes or not tensors or any(one.shape in shapes for one in tensors)

    def parts_in(self, state: Any) -> int:
        """Among how many ranks parameters are sharded of which this holds the shard of this rank, as a plain tensor under the
        parameter's name; 0 where there is none."""
        weights = self.live.tensors()[WEIGHTS] if self.live.optimizers() else {}
        if not is_sharded(weights.values()):
            return 0
        named = ((weights.get(plain_name(name).removeprefix("module.")), one) for name, one in tensors_in(state))
        found = (shards_of(weight) for weight, one in named if weight is not None and _is_shard(one, weight))
        return max(found, default=0)

    def renamed(self, path: str, to: str) -> None:
        """What was saved last has another name now: that of a finished checkpoint."""
        if self._last is not None and path in self._last[2]["paths"]:
            self._add_path(to)

    def _add_path(self, path: str) -> None:
        _, number, document = self._last or (0, 0, {})
        if path not in document["paths"] and len(document["paths"]) < 16:
            document["paths"] += [path] if path else []
        document["site"] = document["site"] or sites.user_site()
        self._write(number, document)

    def _taken(
        self, when: str, tensors: dict[str, Named], beside: Named | None, own: dict[str, int], made_before: int = 0
    ) -> dict[str, Any]:
        """`beside`: the copies that no module holds; None where nobody has looked. `own`: what the user's objects hold."""
        digests = {kind: digests_of(named) for kind, named in tensors.items()}
        digests[MOMENTS] = by_parameter(digests[MOMENTS])
        if beside is not None:
            digests[BESIDE] = digests_of(beside)
        digests[OWN] = own
        weights = list(tensors[WEIGHTS].values())
        return {
            "when": when,
            "step": self._step,
            "wall_ns": time.time_ns(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1") or 1),
            "program": _program(),
            "site": "",
            "paths": [],
            "sharded": is_sharded(weights),
            "fits": fits_into(weights),
            "numbers": self.live.numbers(made_before),
            "schedule": self.live.first_scheduler,
            "rng": self._rng if when != AGAIN else [],
            "resumes": False,
            "holds_schedule": False,
            "holds_copies": False,
            "looks": {},
            "weights_at": {},
            "digests": {kind: _as_text(named) for kind, named in digests.items()},
        }

    def _write(self, number: int, document: dict[str, Any]) -> None:
        """One file, whole or not at all. No link is followed."""
        path = os.path.join(self.rank.folder, file_name(self.trace.rank, self.trace.attempt, number))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(document, file)
        except OSError as error:
            hand_on(error)
            return  # no room, or no folder any more: the job goes on without


def _on_cpu(named: Named) -> Named:
    return {name: one for name, one in named.items() if one.device.type == "cpu"}


def _as_text(digests: dict[str, int]) -> dict[str, str]:
    return {name: f"{one:016x}" for name, one in digests.items()}


def _program() -> str:
    """What this process runs."""
    return os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""


def _is_shard(saved: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a plain tensor has the size of what this rank holds of a parameter, and not of the whole."""
    return getattr(saved, "_spec", None) is None and saved.shape == local(weight).shape != weight.shape
