"""Hooks which plug into the training loop by name."""
import importlib
import logging
import pkgutil

log = logging.getLogger("registry")
HOOKS = {}


def hook(name):
    def wrap(cls):
        HOOKS[name] = cls
        return cls
    return wrap


def discover(package):
    pkg = importlib.import_module(package)
    for info in pkgutil.iter_modules(pkg.__path__):
        importlib.import_module(f"{package}.{info.name}")
    log.info("hooks available: %s", ", ".join(sorted(HOOKS)))


def make(names, **kwargs):
    """Names which no package provides are left out, so that configs stay portable."""
    chosen = []
    for name in names:
        if name in HOOKS:
            chosen.append(HOOKS[name](**kwargs))
        else:
            log.debug("no hook called %s", name)
    return chosen


@hook("lr_log")
class LrLog:
    def __init__(self, **kwargs):
        self.seen = []

    def after_step(self, trainer):
        self.seen.append(trainer.opt.param_groups[0]["lr"])

    def after_epoch(self, trainer, epoch):
        trainer.say("epoch %d lr %.5f", epoch, self.seen[-1])
