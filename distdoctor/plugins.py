"""The one plugin manager. Our own plugins and strangers' come in by the same door: the entry point group `distdoctor`."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import pluggy

from distdoctor import hooks
from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.errors import PluginTrouble
from distdoctor.offers import DataSource, Drill, Model, Strategy

GROUP = "distdoctor"
Thing = TypeVar("Thing")


class Manager(pluggy.PluginManager):
    """Knows hooks and their implementations by name, without pluggy's markers, as pytest's own manager does."""

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> pluggy.HookspecOpts | None:
        if not _is_hook(module_or_class, name):
            return None
        return {"firstresult": False, "historic": False, "warn_on_impl": None, "warn_on_impl_args": None}

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        if not _is_hook(plugin, name):
            return None
        return {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": False,
            "trylast": False,
            "specname": None,
        }


def _is_hook(module: Any, name: str) -> bool:
    return name.startswith(hooks.PREFIX) and inspect.isroutine(getattr(module, name, None))


@dataclass(frozen=True)
class LoadedPlugin:
    """One plugin: its name, where it comes from, and why it could not be loaded ("" when it could)."""

    name: str
    distribution: str
    version: str
    module: str
    trouble: str = ""
    blocked: bool = False


@dataclass
class Plugins:
    """What all plugins offer together. Made by `load`."""

    manager: Manager
    loaded: list[LoadedPlugin] = field(default_factory=list)

    @cached_property
    def checks(self) -> dict[str, Check]:
        """By code, in the order of the codes. PluginTrouble: two plugins offer one code."""
        return dict(sorted(self._named("distdoctor_checks", lambda check: check.code, "check").items()))

    @cached_property
    def remedies(self) -> dict[str, Remedy]:
        return self._named("distdoctor_remedies", lambda remedy: remedy.slug, "remedy")

    @cached_property
    def strategies(self) -> dict[str, Strategy]:
        return self._named("distdoctor_strategies", lambda strategy: strategy.name, "strategy")

    @cached_property
    def models(self) -> dict[str, Model]:
        return self._named("distdoctor_models", lambda model: model.name, "model")

    @cached_property
    def data(self) -> dict[str, DataSource]:
        return self._named("distdoctor_data", lambda source: source.name, "data set")

    @cached_property
    def drills(self) -> dict[str, Drill]:
        return self._named("distdoctor_drills", lambda drill: drill.slug, "drill")

    @cached_property
    def reports(self) -> dict[str, Callable[[Diagnosis], str]]:
        found = self._offers("distdoctor_reports")
        return _unique([(owner, name, report) for owner, offer in found for name, report in offer.items()], "report")

    def _named(self, hook: str, name_of: Callable[[Any], str], what: str) -> dict[str, Any]:
        found = self._offers(hook)
        return _unique([(owner, name_of(thing), thing) for owner, offer in found for thing in offer], what)

    def _offers(self, hook: str) -> list[tuple[str, Any]]:
        """(owner, what it offers), one plugin at a time: one that raises is noted as trouble and the others go on."""
        found = []
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                offer = implementation.function()
                for trouble in getattr(offer, "troubles", ()):
                    self._note(implementation.plugin_name, trouble)
                found.append((implementation.plugin_name, offer if isinstance(offer, dict) else list(offer)))
            except Exception as error:
                self._note(implementation.plugin_name, f"{hook} failed: {type(error).__name__}: {error}")
        return found

    def _note(self, name: str, trouble: str) -> None:
        self.loaded = [
            replace(p, trouble=f"{p.trouble}; {trouble}".lstrip("; ")) if p.name == name else p for p in self.loaded
        ]


def _unique(offers: Iterable[tuple[str, str, Thing]], what: str) -> dict[str, Thing]:
    owners: dict[str, str] = {}
    found: dict[str, Thing] = {}
    for owner, name, thing in offers:
        if name in owners:
            raise PluginTrouble(
                f"the {what} {name} is offered by both {owners[name]} and {owner}",
                way_out=f"Leave one out: --no-plugin {owner}.",
            )
        owners[name], found[name] = owner, thing
    return found


def load(blocked: Iterable[str] = ()) -> Plugins:
    """All installed plugins except the `blocked` ones. One that fails to load is named with its distribution in `loaded`.

    PluginTrouble: a name to block that is not installed.
    """
    plugins = Plugins(Manager(hooks.PROJECT))
    plugins.manager.add_hookspecs(hooks)
    entry_points = _installed(tuple((folder, _changed_ns(folder)) for folder in sys.path))
    blocked = set(blocked)
    unknown = blocked - {entry.name for entry in entry_points}
    if unknown:
        known = ", ".join(entry.name for entry in entry_points)
        raise PluginTrouble(
            f"no plugin is called {', '.join(sorted(unknown))}", way_out=f"Installed are: {known} (distdoctor plugins)."
        )
    for entry in entry_points:
        plugins.loaded.append(_load_one(plugins.manager, entry, entry.name in blocked))
    return plugins


@lru_cache(maxsize=8)
def _installed(path: tuple[tuple[str, int], ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """By name. Python reads a file of every installed distribution for it: that is done again once something was installed."""
    return tuple(sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name))


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _load_one(manager: pluggy.PluginManager, entry: importlib.metadata.EntryPoint, blocked: bool) -> LoadedPlugin:
    distribution = entry.dist.name if entry.dist else "unknown"
    version = entry.dist.version if entry.dist else ""
    trouble = ""
    if not blocked:
        try:
            module = entry.load()
            misspelt = _misspelt_hooks(module)
            if misspelt:
                trouble = f"implements {', '.join(misspelt)}, which is no hook of distdoctor"
            else:
                manager.register(module, name=entry.name)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
    return LoadedPlugin(entry.name, distribution, version, entry.value, trouble, blocked)


def _misspelt_hooks(module: Any) -> list[str]:
    """Functions whose names begin like a hook's, and that no hook has."""
    return sorted(name for name in dir(module) if _is_hook(module, name) and not _is_hook(hooks, name))
