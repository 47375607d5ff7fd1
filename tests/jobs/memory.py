"""Small trainings in which memory is watched: ill ones, and the healthy ones that look most like them."""

from __future__ import annotations

import copy
import multiprocessing
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from distdoctor.probe.memory.device_memory import Context, DeviceMemory, OnDevice
from distdoctor.probe.memory.stream import device_memory
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run
from jobs import run_ranks

STREAMS = "memory,progress,collectives,environment"


def watched(
    target: Callable[..., Any],
    *,
    ranks: int = 2,
    deep: bool = False,
    fails: bool = False,
    streams: str = STREAMS,
    **about: Any,
) -> tuple[Recording, list[Any]]:
    """The recording of a job, and what each rank returned (None of those that failed)."""
    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(_watched, ranks, target, folder, deep, streams, about, timeout=90, join=False)
        assert fails or all(result.error is None for result in results), [result.error for result in results]
        recording = read_run(Path(folder))
        assert not recording.troubles, recording.troubles
        ends = {r.rank: RankEnd(1, at_ns=0) for r in results if r.error is not None} if fails else {}
        job = Job(world_size=ranks, ends=ends, exit_code=int(fails))
        source = Path(__file__).read_text("utf-8")
        return Recording(job, recording.ranks, sources={__file__: source}), [result.value for result in results]


def _watched(
    rank: int, world_size: int, target: Callable[..., Any], folder: str, deep: bool, streams: str, about: dict[str, Any]
) -> Any:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    from distdoctor.probe.start import note_exception, start

    start(folder, ProbeSettings(frozenset(streams.split(",")), frozenset({"memory"} if deep else ())))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    try:
        returned = target(rank, world_size, **about)
    except Exception as error:
        note_exception(error)
        raise
    dist.destroy_process_group()
    return returned


def line(words: str) -> int:
    """The number of the one line of this file that holds these words."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if words in text and "line(" not in text]
    return found


class Net(nn.Module):
    """256 rows of 512 numbers are kept for backward: half a MiB each time."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.body = nn.Linear(32, width)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)  # a hidden layer of 2 GiB
        scores: Tensor = self.head(hidden.relu())
        return scores


def made(rank: int, *, width: int = 512) -> tuple[DistributedDataParallel, torch.optim.Optimizer, torch.Generator]:
    model = DistributedDataParallel(Net(width))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.Generator().manual_seed(rank)


def batch(generator: torch.Generator, size: int = 256) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 32, generator=generator), torch.randint(0, 10, (size,), generator=generator)


# --- ill ------------------------------------------------------------------------------------------------------------------


def total_of_losses(rank: int, world_size: int, *, steps: int = 12) -> None:
    model, optimizer, generator = made(rank)
    total = 0.0
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss  # with its graph


def kept_outputs(rank: int, world_size: int, *, steps: int = 12) -> None:
    model, optimizer, generator = made(rank)
    outputs = []
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        outputs.append(model.module(inputs))  # a second forward, kept with its graph


class Recorder:
    """An object whose property nobody but its owner may ask for."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    @property
    def forbidden(self) -> Tensor:
        raise AssertionError("somebody called the user's code")


class Trainer:
    """As people write them: what is kept is an attribute."""

    def __init__(self, rank: int) -> None:
        self.model, self.optimizer, self.generator = made(rank)
        self.history: list[Tensor] = []

    def step(self) -> None:
        inputs, targets = batch(self.generator)
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.history.append(loss)  # in an attribute


def kept_in_an_attribute(rank: int, world_size: int, *, steps: int = 12) -> None:
    trainer = Trainer(rank)
    for _ in range(steps):
        trainer.step()


class Listener:
    """Keeps what a layer gives, as a hook of it."""

    def __init__(self, layer: nn.Module) -> None:
        self.seen: list[Tensor] = []
        self.handle = layer.register_forward_hook(self.listen)  # one more in each step

    def listen(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self.seen.append(output)


def hook_of_every_step(rank: int, world_size: int, *, steps: int = 12, removes: bool = False) -> None:
    model, optimizer, generator = made(rank)
    for _ in range(steps):
        inputs, targets = batch(generator)
        hidden = Listener(model.module.body)
        optimizer.zero_grad()
        (cross_entropy(model(inputs), targets) + hidden.seen[-1].square().mean()).backward()
        optimizer.step()
        if removes:
            hidden.handle.remove()


def hooks_of_all_steps(rank: int, world_size: int, *, steps: int = 24) -> None:
    """Many listeners on one layer, made once, and cleared in each step."""
    model, optimizer, generator = made(rank)
    every = [Listener(model.module.body) for _ in range(6)]
    for _ in range(steps):
        inputs, targets = batch(generator)
        for one in every:
            one.seen.clear()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def carried_state(rank: int, world_size: int, *, steps: int = 12, detach: bool = False) -> None:
    torch.manual_seed(0)
    encoder, head = nn.Linear(32, 64), nn.Linear(64, 10)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    hidden = torch.zeros(256, 64)
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        hidden = torch.tanh(encoder(inputs) + hidden)  # the state of the batch before
        loss = cross_entropy(head(hidden), targets)
        loss.backward(retain_graph=not detach)
        optimizer.step()
        if detach:
            hidden = hidden.detach()


def cache_without_bound(rank: int, world_size: int, *, steps: int = 40) -> None:
    model, optimizer, generator = made(rank)
    cache: dict[int, Tensor] = {}
    for step in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        cache[step] = torch.ones(256, 1024)  # one MiB in each step


def evaluated_with_gradients(rank: int, world_size: int, *, without: bool = False, mixed: bool = False) -> None:
    model, optimizer, generator = made(rank)
    data = DataLoader(TensorDataset(*batch(generator, 1024)), batch_size=256)
    for _ in range(2):
        model.train()
        for inputs, targets in data:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        validate(model, data, without=without, mixed=mixed)


def validate(model: nn.Module, data: Any, *, without: bool, mixed: bool) -> float:
    model.eval()
    correct = 0.0
    for inputs, targets in data:  # validation
        with torch.set_grad_enabled(not without), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            output = model(inputs)
        correct += float((output.argmax(-1) == targets).float().mean())
    return correct


def kept_each_batch_of_an_evaluation(rank: int, world_size: int, *, only_the_best: bool = False) -> None:
    """All outputs of a validation, of which the metric needs one number a row; `only_the_best`: it keeps that."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(40 * 256, 16), torch.randint(4096, (40 * 256,))), batch_size=256)
    for _ in range(2):
        model.train()
        for _, (inputs, targets) in zip(range(6), data, strict=False):
            optimizer.zero_grad()
            cross_entropy(model(inputs[:64]), targets[:64]).backward()
            optimizer.step()
        validated(model, data, only_the_best)
    model.train()
    for _ in range(2):
        optimizer.step()  # after an evaluation


@torch.no_grad()
def validated(model: nn.Module, data: Any, only_the_best: bool) -> float:
    model.eval()
    outputs, wanted = [], []
    for inputs, targets in data:
        output = model(inputs)
        outputs.append(output.argmax(-1) if only_the_best else output)  # of each batch
        wanted.append(targets)
    found = torch.cat(outputs)
    return float(((found if only_the_best else found.argmax(-1)) == torch.cat(wanted)).float().mean())


def kept_the_best_evaluation(rank: int, world_size: int) -> None:
    """What an evaluation returns carries its graph, and is compared with that of the next one."""
    model, _, generator = made(rank)
    data = DataLoader(TensorDataset(*batch(generator, 1024)), batch_size=256)
    best = evaluated(model, data)
    for _ in range(2):
        best = min(best, evaluated(model, data))


def evaluated(model: nn.Module, data: Any) -> Tensor:
    model.eval()
    total = torch.zeros(())
    for inputs, targets in data:  # batches of an evaluation
        total = total + cross_entropy(model(inputs), targets)
    model.train()
    return total


def evaluated_without_a_loader(rank: int, world_size: int, *, wanted: bool = False) -> None:
    """The graph goes on from batch to batch. `wanted`: what was computed in eval mode is trained on."""
    model, optimizer, generator = made(rank)
    for _ in range(4):
        total = torch.zeros(())
        for _ in range(3):
            inputs, targets = batch(generator)
            optimizer.zero_grad()
            (cross_entropy(model(inputs), targets) + total).backward()
            optimizer.step()
            total = torch.zeros(())
        model.eval()  # evaluation by hand
        for _ in range(4):
            inputs, targets = batch(generator)
            total = total + cross_entropy(model(inputs), targets)
        model.train()
        if not wanted:
            del total
        else:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()


def graph_kept_for_nothing(rank: int, world_size: int, *, steps: int = 12, keep: bool = True) -> None:
    model, optimizer, generator = made(rank, width=2048)
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward(retain_graph=keep)  # nobody asks again
        optimizer.step()


def state_on_one_rank(rank: int, world_size: int, *, steps: int = 6, everywhere: bool = False) -> None:
    """Rank 0 steps for all and sends what came of it."""
    torch.manual_seed(0)
    model = nn.Linear(4096, 2048)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, 4096)).square().mean().backward()
        if rank == 0 or everywhere:
            optimizer.step()  # its state lies on one rank alone
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)


def out_of_memory(rank: int, world_size: int, *, who: int = 1) -> None:
    """`ulimit -v` ends the address space a GiB above what is there."""
    import resource

    model, optimizer, generator = made(rank)
    for step in range(6):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        if rank == who and step == 4:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
            inputs, targets = inputs.repeat(4096, 1), targets.repeat(4096)
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def out_of_device_memory(rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer, generator = torch.optim.AdamW(model.parameters()), torch.Generator().manual_seed(rank)
    for step in range(6):
        inputs, targets = (tensor.cuda() for tensor in batch(generator))
        optimizer.zero_grad()
        if step == 4:
            inputs = inputs.new_empty(1 << 44)  # 64 TiB of a device
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


class StandIn:
    """What CUDA's allocator would say of a device that holds this model: the tensors are counted, `capacity` is made up."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.saved, self.peak = model, optimizer, 0, 0

    def keep(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            self.saved += tensor.nbytes
        return tensor

    def look(self) -> None:
        """Backward begins: everything is there."""
        held = [tensor for one in self.model.parameters() for tensor in (one, one.grad) if tensor is not None]
        held += [value for state in self.optimizer.state.values() for value in state.values()]
        self.peak = max(self.peak, sum(tensor.nbytes for tensor in held) + self.saved)
        self.saved = 0

    def now(self, *, capacity: int = 0, reserved: int = 0, retries: int = 0) -> OnDevice:
        reserved = reserved or self.peak
        return OnDevice(self.peak, reserved, self.peak, reserved - self.peak, capacity, retries, 0)


def nearly_full_device(rank: int, world_size: int, *, what: str = "activations", room: float = 1.05) -> None:
    """`room`: the capacity of the device, times the peak of the sixth step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    if what == "parameters":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)  # three numbers of state for each parameter
    stand_in = StandIn(model, optimizer)
    told: dict[str, Any] = {}
    with mock.patch.object(DeviceMemory, "now", side_effect=lambda: stand_in.now(**told)):
        for _ in range(8):
            optimizer.zero_grad(set_to_none=False)
            with torch.autograd.graph.saved_tensors_hooks(stand_in.keep, lambda tensor: tensor):
                loss = model(torch.randn(8192 if what == "activations" else 8, 256)).square().mean()
            stand_in.look()
            loss.backward()
            told["capacity"] = int(room * stand_in.peak)
            optimizer.step()  # on a device that is nearly full


def torn_to_pieces(rank: int, world_size: int, *, retries: int = 4) -> None:
    """An allocator that holds three GiB for one."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counters = OnDevice(1 << 29, 3 << 30, 1 << 30, 2 << 30, 80 << 30, retries, 0)
    with mock.patch.object(DeviceMemory, "now", return_value=counters):
        for _ in range(16):
            optimizer.zero_grad()
            model(torch.ones(4, 16)).mean().backward()
            optimizer.step()


def on_the_first_device(rank: int, world_size: int, *, guests: tuple[int, ...] = (1,)) -> None:
    """What the driver would say where these ranks have touched the device of rank 0 as well."""
    own = Context(f"host GPU-{rank}", True, 1 << 30)
    first = [Context("host GPU-0", False, 2 << 20)] if rank in guests else []
    with mock.patch.object(device_memory, "contexts", return_value=[*first, own]):
        plain(rank, world_size, steps=4)


def over_devices(rank: int, world_size: int, *, devices: int = 2) -> None:
    """nn.DataParallel as it is made where there are two devices; it is not called, because there are none."""
    seen = {
        "_get_available_device_type": lambda: "cuda" if devices else None,
        "_get_all_device_indices": lambda: list(range(devices)),
        "_check_balance": lambda indices: None,
    }
    with mock.patch.multiple(sys.modules[nn.DataParallel.__module__], **seen):
        nn.DataParallel(Net())  # one process for all devices
    plain(rank, world_size, steps=4)


def wide_buckets(rank: int, world_size: int, *, views: bool = False) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3600, 3600), gradient_as_bucket_view=views)  # 49 MiB of gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 3600)).square().mean().backward()
        optimizer.step()


def products_on_a_device(rank: int, world_size: int, *, autocast: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(torch.randn(8192, 2048, device="cuda")).float().square().mean()
        loss.backward()  # of products in fp32
        optimizer.step()


# --- healthy ----------------------------------------------------------------------------------------------------------------


def plain(rank: int, world_size: int, *, steps: int = 40, evaluate_every: int = 0, accumulate: int = 1) -> list[Any]:
    """Losses as numbers, outputs detached and forgotten, evaluation without gradients."""
    model, optimizer, generator = made(rank)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            inputs, targets = batch(generator)
            loss = cross_entropy(model(inputs), targets) / accumulate
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if evaluate_every and step % evaluate_every == 0:
            with torch.no_grad():
                model.eval()
                kept = [model(batch(generator)[0]) for _ in range(8)]
                model.train()
            del kept
    return [losses[-1].item()]


def sequences(rank: int, world_size: int, *, steps: int = 40, growing: bool = False) -> None:
    """Every batch has another length; `growing`: each is longer than the one before."""
    torch.manual_seed(0)
    model, rng = nn.GRU(16, 64, batch_first=True), random.Random(rank)
    cell = nn.GRUCell(16, 16)
    optimizer = torch.optim.AdamW([*model.parameters(), *cell.parameters()], lr=1e-3)
    for step in range(1, steps + 1):
        length = 4 * step if growing else rng.randint(8, 256)
        inputs = torch.randn(16, length, 16)
        state = torch.zeros(16, 16)
        for at in range(min(length, 64)):
            state = cell(inputs[:, at], state)
        optimizer.zero_grad()
        loss = model(inputs)[0].square().mean() + state.square().mean()
        loss.backward()
        optimizer.step()


def replayed(rank: int, world_size: int, *, steps: int = 60, how: str = "list") -> None:
    """A replay buffer that is full after a third of the training."""
    torch.manual_seed(0)
    model = nn.Linear(65_536, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    recent: Any = deque(maxlen=20) if how == "deque" else []
    for _ in range(steps):
        recent.append(torch.randn(16, 65_536))  # 4 MiB
        if how == "list" and len(recent) > 20:
            recent.pop(0)
        optimizer.zero_grad()
        mse_loss(model(random.choice(recent)), torch.zeros(16, 1)).backward()
        optimizer.step()


def read_once(rank: int, world_size: int, *, steps: int = 60, samples: int = 20) -> None:
    """Warm-up: every sample is kept when it is first read, and after an epoch all of them are there."""
    torch.manual_seed(0)
    model = nn.Linear(65_536, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    cache: dict[int, Tensor] = {}
    for step in range(steps):
        index = step % samples
        if index not in cache:
            cache[index] = torch.randn(16, 65_536)  # 4 MiB
        optimizer.zero_grad()
        mse_loss(model(cache[index]), torch.zeros(16, 1)).backward()
        optimizer.step()


def averaged_weights(rank: int, world_size: int, *, steps: int = 40) -> None:
    """An exponential moving average of the weights, and a copy of the best ones."""
    model, optimizer, generator = made(rank)
    average = copy.deepcopy(model.module)
    best: dict[str, Tensor] = {}
    for step in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.module.parameters(), strict=True):
                mean.lerp_(now, 0.01)
        if step % 10 == 0:
            best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert best


def adversaries(rank: int, world_size: int, *, steps: int = 24) -> None:
    """Two optimizers that step in turn, and a generator's output that both use."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(16, 256), nn.Linear(256, 1)
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(steps):
        fake = maker(torch.randn(64, 16))
        second.zero_grad()
        loss = judge(fake.detach()).mean() - judge(torch.randn(64, 256)).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        (-judge(fake).mean()).backward()
        first.step()


def attacked(rank: int, world_size: int) -> None:
    """Evaluation under attack: gradients with respect to the inputs, asked for in every batch."""
    model, optimizer, generator = made(rank)
    data = DataLoader(TensorDataset(*batch(generator, 1024)), batch_size=256)
    for _ in range(2):
        model.train()
        for inputs, targets in data:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        for inputs, targets in data:
            inputs.requires_grad_(True)
            cross_entropy(model.module(inputs), targets).backward()
            with torch.no_grad():
                model(inputs + 0.1 * inputs.grad.sign())
        model.train()


def second_loss(rank: int, world_size: int, *, steps: int = 12) -> None:
    """Two losses share a forward: the first backward has to leave the graph to the second."""
    torch.manual_seed(0)
    model, generator = Net(2048), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        scores = model(inputs)
        cross_entropy(scores, targets).backward(retain_graph=True)
        scores.square().mean().backward()
        optimizer.step()
