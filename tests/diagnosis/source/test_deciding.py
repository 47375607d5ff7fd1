"""The condition that let ranks part is found in the source: behind calls, properties, decorators, loops and exceptions."""

from __future__ import annotations

from functools import partial
from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.deciding import awaited_condition, deciding_condition, deciding_count
from distdoctor.diagnosis.source.deciding_value import DTYPE, MEMBERS, ROOT, SHAPE, deciding_value, most_telling_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.recording.recording import SourceLine

CLOCK = """\
    class Budget:
        def spent(self):
            return time.monotonic() - self.began > self.seconds
    def main(budget, model):
        while not budget.spent():
            loss = model(1)
            loss.backward()
        dist.barrier()
    main(Budget(), model)
    """
WARNED = """\
    class Notice:
        def __init__(self):
            self.raised = False
            signal.signal(signal.SIGUSR1, self.warned)
        def warned(self, number, frame):
            self.raised = True
    def main(notice, loader, model):
        micro = 0
        for x, y in loader:
            last = micro % 10 == 9
            with nullcontext() if last else model.no_sync():
                loss = model(x, y)
                loss.backward()
            micro += 1
            if notice.raised or micro > 400:
                break
        dist.barrier()
    """
CACHE = """\
    def prepare(path):
        write(path)
        dist.barrier()
    def load(path):
        if not path.exists():
            prepare(path)
    def main():
        load(PATH)
        dist.all_reduce(total)
    """
CALLBACKS = """\
    class Trainer:
        def __init__(self, rank):
            self.callbacks = [Rate()]
            if rank == 0:
                self.callbacks.append(Log())
        def step(self):
            for callback in self.callbacks:
                callback.on_step(self)
            dist.all_reduce(self.grad)
    class Rate:
        def on_step(self, trainer):
            trainer.rate *= 0.9
    class Log:
        def on_step(self, trainer):
            dist.all_gather(trainer.losses, trainer.loss)
    """
DECORATED = """\
    def on_first_rank(fn):
        def run(*args):
            if dist.get_rank() == 0:
                return fn(*args)
        return run
    @on_first_rank
    def note(name):
        dist.broadcast_object_list(name)
    def main():
        note(["a"])
        dist.barrier()
    """
CAUGHT = """\
    def forward(x):
        if x.numel() > MOST:
            raise MemoryError
        return x
    def step(x):
        try:
            loss = forward(x)
        except MemoryError:
            return None
        loss.backward()
    def main():
        for x in data:
            step(x)
        dist.barrier()
    """
AGREED = """\
    def main(loss):
        for step in range(10):
            stop = torch.tensor(loss.item() < 1)
            dist.all_reduce(stop)
            if stop:
                break
            dist.broadcast(weights)
        dist.barrier()
    """
REDUCED = """\
    def score(loss):
        dist.reduce(loss, dst=0)
        return loss.item()
    def main():
        if score(loss) < best:
            dist.all_gather(parts, model)
        dist.barrier()
    """
HOOKED = """\
    class Budget(TrainerCallback):
        def on_step_end(self, args, state, control):
            if self.is_over(state):
                control.should_training_stop = True
        def is_over(self, state):
            return state.is_world_process_zero and self.used > 5
        def on_log(self, args, state, control):
            if state.is_world_process_zero:
                self.lines = 1
    def main():
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(callbacks=[Budget()])
            trainer.train()
    """
DROPPED = """\
    def experience(prompts, rank, world):
        groups = []
        for prompt in prompts[rank::world]:
            rewards = score(generate(prompt))
            if rewards.std() < 1e-6:
                continue
            groups.append(Group(prompt, rewards))
        return groups
    def update(model, groups):
        order = torch.randperm(len(groups), generator=g)
        for i in range(0, len(order), 2):
            model(order[i]).backward()
    def run(model):
        groups = experience(PROMPTS, rank, world)
        update(model, groups)
        dist.all_gather_object(everyone, 1)
    """
TOLD_TO_STOP = """\
    class Net(LightningModule):
        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.watch(loss)
            return loss
        def watch(self, loss):
            if loss.item() < self.best:
                self.best, self.bad = loss.item(), 0
            else:
                self.bad += 1
            if self.bad >= 3:
                self.trainer.should_stop = True
        def free(self, worker):
            if worker.age > 3:
                worker.stopped = True
            else:
                self.trainer.should_stop = False
    trainer.fit(Net(), DataLoader(Rows(), 4))
    """
STOPPED_BY_ONE = """\
    class Report(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if not state.is_world_process_zero or "loss" not in logs:
                return control
            return self.plateau(logs, control)
        def plateau(self, logs, control):
            if float(logs["loss"]) < self.best:
                self.best, self.stale = float(logs["loss"]), 0
            else:
                self.stale += 1
            if self.stale >= self.patience:
                control.should_training_stop = True
            return control
    trainer = Trainer(model, callbacks=[Report()])
    trainer.train()
    trainer.evaluate()
    """
TERMINATED = """\
    def main(rank):
        trainer = Engine(step)
        @trainer.on(Events.EPOCH_COMPLETED)
        def validate(engine):
            evaluator.run(loader)
            if engine.state.output["loss"].item() < LEAST:
                engine.terminate()
        trainer.run(loader, max_epochs=3)
    def step(engine, batch):
        return model(batch).backward()
    """
DTYPES = """\
    def kind():
        return torch.bfloat16 if "avx512_bf16" in open("/proc/cpuinfo").read() else torch.float32
    def reduce(flat):
        flat = flat.to(kind())
        dist.all_reduce(flat)
    """
OWNERS = """\
    def owners(model):
        names = [name for name in model.state_dict()]
        return {name: at % len(names) for at, name in enumerate(names)}
    def step(model, owner):
        for name, p in model.named_parameters():
            dist.reduce(p.grad, dst=owner[name])
    step(model, owners(model))
    """
SHUFFLED = """\
    def order(rows, rank):
        rows = list(rows)
        random.Random(rank).shuffle(rows)
        yield from cut(rows)
    def main(rows, rank):
        for part in order(rows, rank):
            dist.all_reduce(part)
        dist.barrier()
    """
COUNTED = """\
    def batches(rank):
        for i in range(40):
            n = 64 if rank == 0 else 40
            yield torch.randn(n)
    def main(model, rank):
        tokens = 0
        for batch in batches(rank):
            tokens += batch.numel()
            if tokens > MOST:
                dist.all_reduce(model.grad)
        dist.barrier()
    """
EXITS = """\
    def main(files):
        mine = files[rank::world]
        if not mine:
            sys.exit(0)
        dist.all_reduce(total)
    """
FROZEN = """\
    class Net(Module):
        def __init__(self, frozen):
            self.head.requires_grad_(not frozen)
    def wrap(net):
        if any(p.requires_grad for p in net.parameters()):
            return DDP(net)
        return net
    def main():
        net = wrap(Net(os.environ.get("FROZEN")))
        dist.barrier()
    """
TABLE = """\
    class Table:
        def put(self, score):
            self.scores[self.rank] = score
        def best(self):
            return int(self.scores.argmax())
        def spread(self, p):
            dist.broadcast(p, src=self.best())
    """


PADDED = """\
    def pad(seqs):
        width = max(len(one) for one in seqs)
        return torch.full((len(seqs), width), 0)
    def gather(t):
        dist.all_gather_into_tensor(torch.empty(8, t.size(1)), t)
    gather(pad(model.generate()))
    """
VOCABULARY = """\
    class Vocab:
        def __init__(self, lines):
            self.index = {word: i for i, word in enumerate(sorted(set(lines)))}
        def __len__(self):
            return len(self.index)
    def main(rank):
        vocab = Vocab(TEXT[rank::2])
        model = DDP(Model(len(vocab)))
    main(RANK)
    """
MEMBERS_OF_A_NODE = """\
    rank = dist.get_rank()
    node = rank // 2
    members = list(range(node * 2, node * 2 + 2))
    local = dist.new_group(members)
    """
TABLE_OF_FUNCTIONS = """\
    def full(t):
        dist.all_reduce(t)
    def cheap(t):
        dist.broadcast(t, src=0)
    PATHS = {True: full, False: cheap}
    def main(rank):
        noisy = 1 + (rank if step > 3 else 0)
        PATHS[noisy < 2](t)
    main(RANK)
    """
AFFORDABLE = """\
    def affordable(cost):
        return cost < BUDGET[dist.get_rank()]
    def main():
        for cost in itertools.takewhile(affordable, range(20)):
            dist.all_reduce(t)
        dist.barrier()
    main()
    """
CHUNKS = """\
    def split(batch):
        return batch.chunk(6)
    @torch.no_grad()
    def forward(stage, batch):
        for part in split(batch):
            dist.send(part, dst=1)
    def main(stage):
        for n in (12, 18, 8):
            forward(stage, torch.randn(n))
        dist.barrier()
    main(STAGE)
    """
CHOSEN_CLASS = """\
    class Plain:
        def end(self):
            pass
        def run(self):
            self.end()
            dist.barrier()
    class Logging(Plain):
        def end(self):
            dist.reduce(t, dst=0)
    def main():
        kind = Logging if dist.get_rank() == 0 else Plain
        kind().run()
    main()
    """
FINALIZED = """\
    class Writer:
        def __del__(self):
            dist.barrier()
    def keep(writer):
        if dist.get_rank() == 0:
            KEPT.append(writer)
    def main():
        keep(Writer())
        dist.all_reduce(t)
    main()
    """
BACKWARD = """\
    def forward_out(self, y):
        dist.send(y, dst=self.rank + 1)
    def backward_out(self, x):
        peer = self.rank - 1 if self.rank == 2 else self.rank + 1
        dist.send(x, dst=peer)
    """
TWO_LISTS = """\
    if dist.get_rank() == 0:
        items = read(root)
    else:
        items = [None] * 3
    dist.broadcast_object_list(items, src=0)
    """
SALTED = """\
    class Cache:
        @property
        def path(self):
            return self.root / f"{hash(self.text)}.pt"
        def wait(self):
            while not self.path.exists():
                time.sleep(1)
    """


LEFT_EARLY = """\
    def epoch(loader, notice):
        total = 0.0
        for batch in loader:
            total += train(batch).item()
            if should_stop():
                return None
        return total / len(loader)
    def run(loader, notice):
        for number in range(9):
            {asked}:
                break
            print(number)
        save()
    """


def found(source: str, one: int, other: int | None) -> list[int]:
    """The lines of the condition and of what it depends on."""
    there = SourceLine("t.py", other) if other else None
    decision = deciding_condition({"t.py": dedent(source)}, SourceLine("t.py", one), there)
    return [decision.site.line, *(site.line for site, _ in decision.way)] if decision else []


@pytest.mark.parametrize(
    ("source", "one", "other", "lines"),
    [
        pytest.param(CLOCK, 7, 8, [5, 3], id="a clock, read by the function that the loop asks"),
        pytest.param(CLOCK, 7, None, [5, 3], id="the rank that left the loop has ended"),
        pytest.param(WARNED, 13, 17, [15, 6], id="a signal that reaches each process at a moment of its own"),
        pytest.param(CACHE, 3, 9, [5], id="a file that one rank has, above a function that reduces"),
        pytest.param(CALLBACKS, 15, 9, [7, 5, 4], id="a callback that only one rank has"),
        pytest.param(DECORATED, 8, 11, [6, 3], id="a decorator that asks for the rank"),
        pytest.param(CAUGHT, 10, 14, [8, 2], id="an exception that is caught"),
        pytest.param(SHUFFLED, 7, 8, [6, 4, 3], id="an order that was changed in place"),
        pytest.param(
            COUNTED, 10, 11, [9, 8, 7, 4, 3], id="of a loop it is how often it runs that counts, not what it gives"
        ),
        pytest.param(
            LEFT_EARLY.format(asked="if epoch(loader, notice) is None"),
            13,
            4,
            [5],
            id="what has nothing returned, not what else is returned",
        ),
        pytest.param(
            LEFT_EARLY.format(asked="if not epoch(loader, notice) > 1"),
            13,
            4,
            [10, 7, 4],
            id="what is returned where that is compared",
        ),
        pytest.param(EXITS, 5, None, [3, 2], id="a process that ends itself before the call"),
        pytest.param(FROZEN, 6, 10, [5, 3, 9], id="a setting of a module that was changed in place"),
        pytest.param(TABLE_OF_FUNCTIONS, 2, 4, [8, 7], id="which function of a table is called"),
        pytest.param(CHOSEN_CLASS, 6, 9, [5, 12, 11], id="which class an object is of"),
        pytest.param(AFFORDABLE, 5, 6, [4, 2], id="a function that is handed to what the loop goes through"),
        pytest.param(CHUNKS, 6, 10, [5, 2], id="the one loop whose length the source does not spell out"),
        pytest.param(FINALIZED, 3, 9, [5], id="who keeps an object alive whose finalizer communicates"),
        pytest.param(AGREED, 6, 7, [], id="what a collective has made the same decides nothing"),
        pytest.param(REDUCED, 6, 7, [5, 3, 2], id="what a collective gives to one rank alone decides"),
        pytest.param(
            DROPPED,
            12,
            16,
            [11, 10, 14, 7, 5],
            id="what leaves things out of the list that makes a loop as long as it is",
        ),
        pytest.param(
            TOLD_TO_STOP, 18, None, [11, 7], id="what tells a framework's loop to stop, in a method of the user's"
        ),
        pytest.param(STOPPED_BY_ONE, 16, 15, [3], id="what keeps all ranks but one from telling a framework to stop"),
        pytest.param(TERMINATED, 10, 5, [6], id="what tells an engine to terminate, where the engine calls both lines"),
        pytest.param(HOOKED, 13, 13, [3, 6], id="a hook that steers the framework, not one that logs, nor a folder"),
    ],
)
def test_the_condition_between_two_lines_is_named(source: str, one: int, other: int | None, lines: list[int]) -> None:
    assert found(source, one, other) == lines
    assert other is None or found(source, other, one) == lines


def test_a_condition_that_both_ranks_answer_alike_decides_nothing() -> None:
    source = dedent(DECORATED)
    decision = deciding_condition({"t.py": source}, SourceLine("t.py", 8), SourceLine("t.py", 11), [1], [2])
    assert decision is None or decision.site.line != 3


@pytest.mark.parametrize(
    ("source", "line", "differs", "lines"),
    [
        (DTYPES, 5, DTYPE, [4, 2]),
        (OWNERS, 6, ROOT, [7, 3]),
        (TABLE, 7, ROOT, [7, 5, 3]),
        (PADDED, 5, SHAPE, [6, 3, 2]),
        (VOCABULARY, 8, SHAPE, [8, 7]),
        (MEMBERS_OF_A_NODE, 4, MEMBERS, [4, 3, 2]),
        (TWO_LISTS, 5, SHAPE, [5, 2, 1]),
    ],
)
def test_what_makes_an_argument_differ_is_named(source: str, line: int, differs: str, lines: list[int]) -> None:
    decision = deciding_value({"t.py": dedent(source)}, SourceLine("t.py", line), differs)
    assert decision is not None
    assert {site.line for site, _ in decision.way} >= set(lines[1:])


def test_what_the_other_branch_stores_is_shown_too() -> None:
    decision = deciding_value({"t.py": dedent(TWO_LISTS)}, SourceLine("t.py", 5), SHAPE)
    assert decision is not None
    assert decision.also == (SourceLine("t.py", 4, "<module>"), "[None] * 3")


def test_of_several_lines_the_value_that_asks_for_the_rank_is_named() -> None:
    sites = [SourceLine("t.py", 2), SourceLine("t.py", 5)]
    decision = most_telling_value({"t.py": dedent(BACKWARD)}, sites, ROOT)
    assert decision is not None
    assert [decision.site.line, decision.way[0][0].line] == [5, 4]


def test_a_hash_that_every_process_salts_is_what_a_polled_file_depends_on() -> None:
    decision = awaited_condition({"t.py": dedent(SALTED)}, SourceLine("t.py", 7))
    assert decision is not None
    assert [decision.site.line, decision.way[-1][0].line] == [6, 4]
    assert awaited_condition({"t.py": dedent(AGREED)}, SourceLine("t.py", 3)) is None


def test_the_statement_that_leads_away_is_named() -> None:
    decision = deciding_condition({"t.py": dedent(EXITS)}, SourceLine("t.py", 5), None)
    assert decision is not None
    assert decision.exit == (SourceLine("t.py", 4, "main"), "sys.exit(0)")


def test_a_raise_that_nobody_catches_decides_nothing_between_ranks_that_both_went_on() -> None:
    refused = """\
    def train(device):
        if not torch.cuda.is_available():
            raise RuntimeError("no GPU")
        fit(device)
    def fit(device):
        dist.all_reduce(total)
    def main():
        train("cuda")
        dist.barrier()
    """

    assert found(refused, 6, 9) == []
    assert found(refused, 6, None) == [2]


SETTLED = """\
    class Trainer:
        def __init__(self, rank):
            self.is_first = rank == 0
        def fit(self):
            for batch in self.batches:
                loss = self.model(batch)
                loss.backward()
                self.reduce(loss)
        def reduce(self, loss):
            if self.is_first:
                dist.all_reduce(loss)
    def main():
        Trainer(dist.get_rank()).fit()
    """


def test_a_condition_that_cannot_change_parts_nobody_who_has_passed_it_before() -> None:
    backward, reduced = SourceLine("t.py", 7), SourceLine("t.py", 11)
    ask = partial(deciding_condition, {"t.py": dedent(SETTLED)}, backward, reduced)
    asks_for_step = dedent(SETTLED).replace("if self.is_first", "if self.is_first and self.step % 10 == 0")

    before = ask()
    assert before is not None
    assert before.test == "if self.is_first"
    assert ask(been=(True, True)) is None
    now_and_then = deciding_condition({"t.py": asks_for_step}, backward, reduced, been=(True, True))
    assert now_and_then is not None
    assert now_and_then.question == "self.is_first and self.step % 10 == 0"


@pytest.mark.parametrize(
    "value", ["None if rank == 1 and self.step == 3 else batch", "losses[rank]", "due(rank, self.step)"]
)
def test_a_condition_that_asks_for_more_than_the_rank_may_change(value: str) -> None:
    called = dedent(SETTLED).replace("if self.is_first", f"image = {value}\n        if image is not None")

    decision = deciding_condition({"t.py": called}, SourceLine("t.py", 7), SourceLine("t.py", 12), been=(True, True))

    assert decision is not None
    assert decision.test == "if image is not None"


def test_lines_that_no_known_body_leads_to_are_parted_by_what_stands_around_them_only() -> None:
    called_by_a_framework = """\
        class Hooks:
            def on_step(self, loss):
                loss.backward()
            def on_log(self, rank):
                if rank == 0:
                    dist.all_reduce(total)
        def main(rank):
            for batch in range(len(os.listdir(rank))):
                save()
        def save():
            dist.barrier()
        """

    assert found(called_by_a_framework, 3, 6) == [5]
    assert found(called_by_a_framework, 3, 11) == []


def test_no_python_and_an_unknown_line_decide_nothing() -> None:
    assert deciding_condition({"t.py": "if ("}, SourceLine("t.py", 1), SourceLine("t.py", 2)) is None
    assert deciding_condition({"t.py": "x = 1\n"}, SourceLine("t.py", 40), None) is None
    assert deciding_condition({}, SourceLine("t.py", 1), None) is None


@pytest.mark.parametrize(
    ("test", "asks"),
    [("if self.rank != 0 or step % self.every", True), ("if is_main_process()", True), ("if image is not None", False)],
)
def test_a_condition_that_asks_for_the_rank_beside_other_things_asks_for_the_rank(test: str, asks: bool) -> None:
    assert Decision(SourceLine("train.py", 15, "log"), test).asks_for_the_rank is asks


THROUGH_HELPERS = """\
class Stage:
    def send(self, x):
        dist.send(x, self.rank + 1)
    def forward(self, inputs):
        self.send(self.model(inputs.popleft()))
    def backward(self):
        dist.recv(self.room, self.rank + 1)
    def run(self, inputs=None):
        total = len(inputs) if inputs else self.accum
        for _ in range(total):
            self.forward(inputs)
        for _ in range(total):
            self.backward()
"""


def test_what_decides_how_often_a_helper_is_called_is_the_loop_around_who_calls_it() -> None:
    sends, receives = SourceLine("train.py", 3, "send"), SourceLine("train.py", 7, "backward")
    decision = deciding_count({"train.py": THROUGH_HELPERS}, sends, receives)

    assert decision is not None
    assert (decision.site.line, decision.way[0][0].line) == (10, 9)
