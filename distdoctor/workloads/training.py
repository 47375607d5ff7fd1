"""The training that all strategies share, written as an ordinary user would write it.

Each named step is a method of its own, so that a drill can replace one on one rank, and each named moment calls what was
registered for it. All strategies train the same: the same weights, the same samples in the same order, the same mean loss.

Why the ranks together read what `single` reads: all use the stock DistributedSampler with one seed. Of `R` ranks, rank `r` gets
every R-th index of the shuffled order beginning at `r`, so step `k` of all ranks with batches of `B / R` covers the indices
`k * B ... (k + 1) * B`, as a batch of `B` does in `single`. Incomplete batches at the end of an epoch are dropped by sampler and
loader: `floor(floor(N / R) / (B / R)) = floor(N / B)` steps everywhere, each of exactly B real samples, none padded.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before any group: its functions keep the default group, as a default argument, for ever
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from distdoctor.errors import WrongUse
from distdoctor.workloads import checkpoint, factory
from distdoctor.workloads.arrangement import Arrangement
from distdoctor.workloads.blocks import recompute_activations
from distdoctor.workloads.layouts import groups_by_layout
from distdoctor.workloads.progress import Progress
from distdoctor.workloads.request import TrainingRequest
from distdoctor.workloads.shapes import Shapes

MOMENTS = (
    "training_start",
    "epoch_start",
    "step_start",
    "micro_step_start",
    "before_backward",
    "after_backward",
    "before_optimizer_step",
    "after_step",
    "evaluation_start",
    "evaluation_end",
    "epoch_end",
    "training_end",
)
"""When registered callbacks are called, in this order. A pipeline interleaves forward and backward of its micro-batches: it has
no `before_backward`, and `after_backward` comes once per micro-step."""

ACTIONS = (
    "join",
    "make_model",
    "make_optimizer",
    "make_sampler",
    "make_loader",
    "set_epoch",
    "zero_grad",
    "forward",
    "compute_loss",
    "scale_loss",
    "backward",
    "average_gradients",
    "optimizer_step",
    "reduce_metrics",
    "evaluate",
    "without_gradients",
    "save",
    "resume",
    "leave",
)
"""What `replace` can put something else in the place of."""

Callback = Callable[["Training"], object]


class Training:
    """One rank's part of one reference training: what strategies and drills work with."""

    arrangement: Arrangement
    """How the strategy holds the model; known from `training_start` on."""
    optimizer: torch.optim.Optimizer
    outputs: Tensor
    """The scores of the last micro-batch, and its mean loss."""
    loss: Tensor
    inputs: Tensor
    targets: Tensor

    def __init__(self, request: TrainingRequest) -> None:
        self.request = request
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = device_of(request.backend, self.local_rank)
        self.epoch = 0
        self.step = 0
        """Optimizer steps since the training began, over all epochs; the current one's number from 0."""
        self.micro_step = 0
        self.losses: list[Tensor] = []
        """The global mean loss of each step of this run: kept on the device, because reading it there would wait for it."""
        self.accuracies: list[float] = []
        """On the test set, after each epoch of this run."""
        self.notes: list[str] = []
        self.samples_seen = 0
        self.training_seconds = 0.0
        self._callbacks: dict[str, list[Callback]] = defaultdict(list)
        self._data: tuple[Any, Any] | None = None

    # -- what a drill uses -------------------------------------------------------------------------------------------

    def on(self, moment: str, callback: Callback) -> None:
        """Call `callback(training)` whenever this rank comes to `moment`, one of `MOMENTS`."""
        if moment not in MOMENTS:
            raise WrongUse(f"there is no moment {moment!r}", way_out=f"Choose from {', '.join(MOMENTS)}.")
        self._callbacks[moment].append(callback)

    def replace(self, action: str, by: Callable[..., Any]) -> None:
        """Do `by` on this rank instead of `action`, one of `ACTIONS`; it is called with the action's own arguments.

        `usual = training.reduce_metrics` beforehand keeps the ordinary one.
        """
        if action not in ACTIONS:
            raise WrongUse(f"there is no action {action!r}", way_out=f"Choose from {', '.join(ACTIONS)}.")
        setattr(self, action, by)

    def at(self, moment: str) -> None:
        """This rank has come to `moment`."""
        for callback in self._callbacks[moment]:
            callback(self)

    # -- what a strategy uses ----------------------------------------------------------------------------------------

    @property
    def train_set(self) -> Any:
        """The map-style data set to train with."""
        return self._both_sets()[0]

    @property
    def test_set(self) -> Any:
        """The map-style data set to measure with."""
        return self._both_sets()[1]

    @property
    def precision(self) -> str:
        """The precision asked for, fp32 if none was."""
        return self.request.precision or "fp32"

    @property
    def device_ids(self) -> list[int] | None:
        """For DistributedDataParallel: the one GPU of this rank, or None on the CPU."""
        return [self.device.index] if self.device.type == "cuda" else None

    def option(self, key: str) -> Any:
        """The value of one of the strategy's own options."""
        return self.request.options[key]

    def note(self, text: str) -> None:
        """Tell the user, once for all ranks, and keep it in the result."""
        self.notes.append(text)
        if self.rank == 0:
            print(f"note: {text}", file=sys.stderr, flush=True)

    def left_to_rank_zero(self) -> bool:
        """True on the ranks that have nothing to do in a strategy of one process."""
        if self.world_size > 1:
            idle = self.world_size - 1
            verb = "has" if idle == 1 else "have"
            self.note(
                f"{self.request.strategy} trains in one process; {idle} of the {self.world_size} ranks {verb} nothing to do"
            )
        return self.rank > 0

    def fit(self, arrangement: Arrangement) -> None:
        """Train from the first epoch, or the resumed one, to the last."""
        self.arrangement = arrangement
        self.optimizer = self.make_optimizer(arrangement.model)
        self.scaler = arrangement.make_scaler(self.device)
        sampler = self.make_sampler(self.train_set, shuffle=True)
        steps_done = self.resume()
        self.progress = Progress(shown=self.rank == 0, steps=self.steps_in_all)
        self.at("training_start")
        for epoch in range(self.epoch, self.request.epochs):
            self.epoch = epoch
            self.train_epoch(sampler, steps_done)
            steps_done = 0
            if self.is_over:
                break
        self.at("training_end")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch: the whole batches that the training set holds."""
        return len(self.train_set) // self.request.batch_size

    @property
    def steps_in_all(self) -> int:
        """Optimizer steps of the whole training, with those before a resumption."""
        steps = self.steps_per_epoch * self.request.epochs
        return min(steps, self.request.steps) if self.request.steps else steps

    @property
    def is_over(self) -> bool:
        """The limit of --steps is reached."""
        return 0 < self.request.steps <= self.step

    # -- the loop ----------------------------------------------------------------------------------------------------

    def train_epoch(self, sampler: Sampler[int] | None, steps_done: int) -> None:
        """One epoch, but for the steps that were done before a resumption; then test, and save."""
        self.at("epoch_start")
        self.seed_noise()
        if sampler is not None:
            self.set_epoch(sampler, self.epoch)
        loader = self.make_loader(self.train_set, sampler, drop_last=True, skip=steps_done * self.request.accumulate)
        self.arrangement.model.train()
        began, seen_before = time.perf_counter(), self.samples_seen
        for micro_batches in in_groups(self.request.accumulate, loader):
            self.train_step(micro_batches)
            steps_done += 1
            speed = (self.samples_seen - seen_before) / (time.perf_counter() - began)
            self.progress.step(self.epoch, self.step - 1, self.losses[-1].item, speed)
            if self.is_over:
                break
        self.training_seconds += time.perf_counter() - began
        if steps_done == 0:
            raise WrongUse(
                f"the training set of {len(self.train_set)} samples holds no whole batch of {self.request.batch_size}",
                way_out="Take a smaller --batch-size or more data.",
            )
        accuracy = self.evaluate() if self.request.evaluate else None
        self.progress.epoch(self.epoch, self.last_loss, accuracy, self.samples_per_second)
        self.at("epoch_end")
        if self.request.save:
            self.save(self.request.save, steps_done)

    def seed_noise(self) -> None:
        """Dropout and augmentation draw differently in each epoch and on each share of the data, and alike on the ranks that
        read the same share."""
        shares = self.arrangement.data_ranks
        torch.manual_seed(self.request.seed + 1 + self.epoch * shares + self.arrangement.data_rank)

    def train_step(self, micro_batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """One optimizer step from `accumulate` micro-batches, and the job's loss in it."""
        self.at("step_start")
        self.zero_grad(self.optimizer)
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for self.micro_step, (inputs, targets) in enumerate(micro_batches):
            self.inputs, self.targets = inputs.to(self.device), targets.to(self.device)
            self.at("micro_step_start")
            is_last = self.micro_step == len(micro_batches) - 1
            synchronises = is_last or self.request.sync_every_micro_step
            with nullcontext() if synchronises else self.arrangement.gradients_stay_local():
                totals += self.arrangement.micro_step(self, self.inputs, self.targets)
            self.samples_seen += len(inputs)
        self.average_gradients(self.arrangement)
        self.at("before_optimizer_step")
        self.optimizer_step(self.optimizer)
        loss_sum, targets_counted = self.reduce_metrics(totals)
        self.losses.append(loss_sum / targets_counted)
        self.at("after_step")
        self.step += 1

    # -- the actions, in the order of a training -----------------------------------------------------------------------

    def join(self) -> None:
        """Meet the other ranks. Without a launcher's environment this is a world of one."""
        if dist.is_initialized():
            return
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        device_id = self.device if self.device.type == "cuda" else None
        if "RANK" in os.environ:
            dist.init_process_group(backend, device_id=device_id)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=device_id)

    def make_model(self) -> nn.Module:
        """The model with the weights that the seed gives, the same on every rank."""
        torch.manual_seed(self.request.seed)
        model = factory.make_model(self.request.model, Shapes.of(self.train_set))
        if self.request.checkpoint_activations:
            recompute_activations(model)
        return model.to(self.device)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of this rank's parameters."""
        groups = groups_by_layout(model.parameters())
        if self.request.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=self.request.lr, momentum=0.9)
        return torch.optim.AdamW(groups, lr=self.request.lr)

    def make_sampler(self, dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        """This rank's share of the data set; of a training set, only what all shares have equally much of."""
        return DistributedSampler(
            dataset,
            num_replicas=self.arrangement.data_ranks,
            rank=self.arrangement.data_rank,
            shuffle=shuffle,
            seed=self.request.seed,
            drop_last=shuffle,
        )

    def make_loader(
        self, dataset: Any, sampler: Sampler[int] | None, *, drop_last: bool, skip: int = 0
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Batches of this rank's share, but for the first `skip` of them, whose samples are not even read."""
        batch_size = self.request.batch_size // self.arrangement.data_ranks // self.request.accumulate
        if skip and sampler is not None:
            sampler = Rest(sampler, skip * batch_size)
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            shuffle=sampler is None and drop_last,
            drop_last=drop_last,
            num_workers=self.request.workers,
            pin_memory=self.device.type == "cuda",
        )

    def set_epoch(self, sampler: Sampler[int], epoch: int) -> None:
        """Shuffle anew: without it, every epoch has the order of the first."""
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the last step's gradients."""
        optimizer.zero_grad()

    def forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The model's scores: [batch, classes], or [batch, length, classes]."""
        outputs: Tensor = model(inputs)
        return outputs

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of these targets."""
        return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The micro-batch's part of the step's loss, so that accumulated gradients are a mean and not a sum."""
        return loss / self.request.accumulate

    def backward(self, loss: Tensor) -> None:
        """Add this loss's gradients."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def average_gradients(self, arrangement: Arrangement) -> None:
        """Average gradients over the ranks, where no wrapper has done so in backward."""
        arrangement.average_gradients(self)

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Change the parameters, unless fp16 gradients have overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def reduce_metrics(self, totals: Tensor) -> Tensor:
        """Sums over all ranks."""
        if not self.arrangement.alone:
            dist.all_reduce(totals)
        return totals

    def without_gradients(self) -> Any:
        """The context in which nothing is kept for a backward pass."""
        return torch.no_grad()

    def evaluate(self) -> float:
        """The accuracy on the test set. What the sampler repeats to give all ranks equally much is not counted."""
        self.at("evaluation_start")
        arrangement = self.arrangement
        arrangement.model.eval()
        sampler = self.make_sampler(self.test_set, shuffle=False)
        real = len(range(arrangement.data_rank, len(self.test_set), arrangement.data_ranks))
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        with self.without_gradients():
            for inputs, targets in self.make_loader(self.test_set, sampler, drop_last=False):
                inputs, targets = inputs.to(self.device), targets.to(self.device)
                outputs = arrangement.predict(self, inputs, targets)
                if outputs is not None and arrangement.counts:
                    hits = outputs.argmax(-1)[:real] == targets[:real]
                    totals += torch.stack([hits.sum(), hits.new_tensor(hits.numel(), dtype=torch.int64)])
                real = max(0, real - len(inputs))
        correct, counted = self.reduce_metrics(totals).tolist()
        accuracy: float = correct / counted
        self.accuracies.append(accuracy)
        self.at("evaluation_end")
        return accuracy

    def save(self, path: str, steps_done: int) -> None:
        """Write a checkpoint from which `resume` goes on, `steps_done` steps into this epoch."""
        if steps_done == self.steps_per_epoch:
            checkpoint.save(self, path, epoch=self.epoch + 1, steps_done=0)
        else:
            checkpoint.save(self, path, epoch=self.epoch, steps_done=steps_done)

    def resume(self) -> int:
        """Load the checkpoint that was asked for, if any; returns the steps that its epoch had done."""
        return checkpoint.load(self, self.request.resume) if self.request.resume else 0

    def leave(self) -> None:
        """Part from the other ranks, the model first.

        A DDP reducer that outlives `destroy_process_group` holds the last reference to gloo's process group, and frees it
        with the GIL held: it then joins gloo's thread, which waits for the GIL to free the tensors of the last collective.
        The rank hangs (torch 2.13: 3 of 32 runs, seen in the stacks; none of 67 with the model freed first) or aborts
        (torch 2.15: 6 of 8 runs that end with the process).
        """
        for holder in ("arrangement", "optimizer", "outputs", "loss"):
            self.__dict__.pop(holder, None)
        gc.collect()
        dist.destroy_process_group()

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def last_loss(self) -> float | None:
        """The job's mean loss in the latest step of this run."""
        return self.losses[-1].item() if self.losses else None

    @property
    def samples_per_second(self) -> float:
        """Samples that this rank has trained on per second, without tests and checkpoints."""
        return self.samples_seen / self.training_seconds if self.training_seconds else 0.0

    def _both_sets(self) -> tuple[Any, Any]:
        if self._data is None:
            self._data = factory.make_data(self.request.data, self.request.data_path)
        return self._data


class Rest(Sampler[int]):
    """What a sampler draws after its first `skipped` indices."""

    def __init__(self, sampler: Sampler[int], skipped: int) -> None:
        self.sampler = sampler
        self.skipped = skipped

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self.sampler, self.skipped, None)

    def __len__(self) -> int:
        return len(self.sampler) - self.skipped  # type: ignore[arg-type]


def in_groups(size: int, batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of `size` batches; an incomplete one at the end is left out."""
    remaining = iter(batches)
    while len(group := list(itertools.islice(remaining, size))) == size:
        yield group


def device_of(backend: str | None, local_rank: int) -> torch.device:
    """The CPU for gloo; for nccl this rank's GPU among those that CUDA_VISIBLE_DEVICES shows, made the current one."""
    if backend == "gloo" or (backend is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise WrongUse(
            f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} are visible",
            way_out="Start at most one rank per visible GPU, or train on the CPU with --backend gloo.",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
