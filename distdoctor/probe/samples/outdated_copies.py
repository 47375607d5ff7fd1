"""Whether `set_epoch` changed a data set in a way that workers which have begun before cannot see.

Each worker holds a copy of the data. An attribute that is bound to another value changes the rank's own object alone; what is
written into shared memory (`self.epoch.fill_(epoch)`) binds no attribute anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from distdoctor.probe import sites
from distdoctor.probe.variables import attributes_of

_PLAIN = (bool, int, float, str, bytes, type(None))


def bound(dataset: Any) -> dict[str, Any]:
    """What the attributes of an object are bound to, and those of objects of the user's in it: plain values as they are, of
    others which object it is, and none is kept."""
    found = _bound(dataset)
    for name, value in attributes_of(dataset).items():
        if type(value) not in _PLAIN and sites.is_users_class(type(value)):
            found |= {f"{name}.{inner}": one for inner, one in _bound(value).items()}
    return found


def _bound(thing: Any) -> dict[str, Any]:
    return {n: value if type(value) in _PLAIN else id(value) for n, value in attributes_of(thing).items()}


def is_outdated(parts: Iterable[Any], changed_ns: Iterable[int], began_ns: int) -> bool:
    """Whether set_epoch changed one of these, data sets and what is in them, after its workers had begun: one of a class of the
    user's, or a sampler that shuffles by the epoch.

    Libraries tell the epoch to all their wrappers, also around data that never shuffle.
    """
    pairs = zip(parts, changed_ns, strict=True)
    return any(changed > began_ns and (sites.is_users_class(type(one)) or _shuffles(one)) for one, changed in pairs)


def _shuffles(thing: Any) -> bool:
    return issubclass(type(thing), DistributedSampler) and bool(attributes_of(thing).get("shuffle"))
