"""
DD218 diverging-schedule: a schedule that is made for optimizer steps is moved once an epoch, or once for every process.

What it means    configure_optimizers hands Lightning a schedule whose length was counted in steps, and does not say how often to
                 move it. Lightning moves a schedule once an epoch unless its "interval" is "step". Or a schedule whose length was
                 counted by the batches of one process is prepared by accelerate, which moves it num_processes times in each step.
Why it hurts     Moved too seldom, the learning rate stays where the schedule begins: a warm-up never ends, a cycle never comes
                 down. Moved too often, the schedule is over after half of the training on two processes, and stays at its end
                 or rises again. Nothing fails.
How we know      The schedule is made with steps_per_epoch, or with a length that comes from trainer.estimated_stepping_batches,
                 and is returned bare or in a dict without "interval". Or its length comes from len(loader) behind
                 accelerator.prepare(loader), without the number of processes, and the schedule is prepared.
What to do       Return {"scheduler": schedule, "interval": "step"}. With accelerate, do not prepare the schedule, or multiply
                 all of its steps by accelerator.num_processes.
When it is fine  Manual optimisation, where the module moves its schedules itself; a length in epochs. With accelerate:
                 split_batches=True, step_scheduler_with_optimizer=False, a length that was taken before the loader was prepared;
                 schedules that begin anew.
Source           LightningModule.configure_optimizers, lr_scheduler_config: "interval" is "epoch" by default.
                 accelerate.scheduler.AcceleratedScheduler.step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.prepared_schedules import PreparedSchedule
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, replace_node, rule
from distdoctor.lint.schedule_lengths import moved_too_often

_IN_STEPS = ("steps_per_epoch", "estimated_stepping_batches")
_BY_HAND = ("lr_schedulers", "automatic_optimization")  # of a module that moves its schedules itself


@rule("DD218", "diverging-schedule", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        if scope.name != "configure_optimizers" or not _is_lightnings(scope):
            continue
        if '"interval"]' in scope.file.text or "'interval']" in scope.file.text:
            continue  # it is said later
        for given in _returned(scope):
            made = _made(given, scope)
            if made is not None:
                yield _sighting(given, made, scope)
    for prepared, length, where in moved_too_often(program):
        yield _for_each_process(prepared, length, where)


def _for_each_process(one: PreparedSchedule, length: ast.Call, where: Scope) -> Sighting:
    """A schedule that accelerate moves num_processes times in each of the steps that it was made for."""
    assert isinstance(one.prepared.func, ast.Attribute)
    given, accelerator = ast.unparse(one.given), ast.unparse(one.prepared.func.value)
    name = last_word(one.made.func)
    return Sighting(
        node=one.prepared,
        scope=one.scope,
        title=f"{name} is made for the batches of one process, and accelerate moves it once for each process in every step",
        why=f"{ast.unparse(length)} counts the batches of one process; on 2 processes the schedule is over after half of them",
        remedy="as-long-as-the-training",
        change=f"do not prepare `{given}`, or multiply its steps by {accelerator}.num_processes"
        if given.isidentifier()
        else f"do not prepare it, or multiply its steps by {accelerator}.num_processes",
        also=(
            (length, where, "counts the batches of one process"),
            *(((one.made, one.scope, "made for as many steps"),) if one.made is not one.given else ()),
        ),
    )


def _is_lightnings(scope: Scope) -> bool:
    """Whether it belongs to a module that Lightning optimizes, as far as its class shows."""
    methods = scope.file.classes.get(scope.of_class, {})
    text = ast.unparse(scope.file.parent[scope.node]) if "training_step" in methods else ""
    return bool(text) and not any(word in text for word in _BY_HAND)


def _returned(scope: Scope) -> Iterator[ast.expr]:
    """What is given as a schedule without an interval: in `[optimizer], [schedule]`, or under "lr_scheduler"."""
    for one in scope.returns:
        value = _meant(one.value, scope)
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            value = _meant(value.elts[1], scope)
            yield from (bare for given in getattr(value, "elts", ()) for bare in _bare(given, scope))
        elif isinstance(value, ast.Dict) and (under := _under(value, "lr_scheduler")) is not None:
            yield from _bare(under, scope)


def _bare(given: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """The schedule, or the dict around it that says no interval."""
    meant = _meant(given, scope)
    if isinstance(meant, ast.Call):
        yield given
    elif isinstance(meant, ast.Dict) and None not in meant.keys and _under(meant, "interval") is None:
        under = _under(meant, "scheduler")
        if under is not None:
            yield under


def _made(given: ast.expr, scope: Scope) -> ast.Call | None:
    """The call that makes it, where its length is counted in steps."""
    made = _meant(given, scope)
    if not isinstance(made, ast.Call) or last_word(made.func) == "LambdaLR":
        return None
    parts = [*made.args, *(word.value for word in made.keywords)]
    words = {word.arg for word in made.keywords if not _is_one(word.value)}
    lengths = {name.attr for part in parts for name in _counted(_meant(part, scope))}
    return made if (words | lengths) & set(_IN_STEPS) else None


def _counted(length: ast.expr) -> Iterator[ast.Attribute]:
    """The attributes in it; steps that are divided by something are epochs, or nobody knows."""
    nodes = list(ast.walk(length))
    if not any(isinstance(one, ast.Div | ast.FloorDiv) for one in nodes):
        yield from (one for one in nodes if isinstance(one, ast.Attribute))


def _is_one(value: ast.expr) -> bool:
    """`steps_per_epoch=1` counts epochs."""
    return isinstance(value, ast.Constant) and value.value == 1


def _meant(value: ast.expr | None, scope: Scope) -> ast.expr:
    """The expression that a name stands for, where the function binds it once."""
    if isinstance(value, ast.Name):
        bound = scope.bindings.get(value.id, [])
        if len(bound) == 1 and bound[0].item == -1 and not bound[0].looped:
            return bound[0].value
    return value if value is not None else ast.Constant(None)


def _under(value: ast.Dict, key: str) -> ast.expr | None:
    pairs = zip(value.keys, value.values, strict=True)
    return next((one for word, one in pairs if isinstance(word, ast.Constant) and word.value == key), None)


def _sighting(given: ast.expr, made: ast.Call, scope: Scope) -> Sighting:
    name, whole = last_word(made.func), ast.unparse(given)
    holder = scope.file.parent.get(given)
    in_config = isinstance(holder, ast.Dict) and _under(holder, "scheduler") is given
    change = f'{whole}, "interval": "step"' if in_config else f'{{"scheduler": {whole}, "interval": "step"}}'
    return Sighting(
        node=given,
        scope=scope,
        title=f"{name} is made for steps, and Lightning moves it once an epoch",
        why='its length is counted in steps, and "interval" is "epoch" where nothing else is said',
        remedy="as-long-as-the-training",
        change=change,
        also=((made, scope, "made for steps"),) if made is not given else (),
        edits=(replace_node(given, scope, change),) if isinstance(given, ast.Name) else (),
    )


SICK = """
import lightning as L
import torch
class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [schedule]
class Other(L.LightningModule):
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}
"""
HEALTHY = """
import lightning as L
import torch
class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
class InEpochs(L.LightningModule):
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return [optimizer], [schedule]
class Divided(L.LightningModule):
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        epochs = self.trainer.estimated_stepping_batches // self.trainer.num_training_batches
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)]
class ByHand(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, index):
        self.lr_schedulers().step()
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)]
"""
