"""Whether `set_epoch` changed a data set in a way that workers which have begun before cannot see.

Each worker holds a copy of the data. An attribute that is bound to another value changes the rank's own object alone; what is
written into shared memory (`self.epoch.fill_(epoch)`) binds no attribute anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distdoctor.probe import sites
from distdoctor.probe.variables import attributes_of

_PLAIN = (bool, int, float, str, bytes, type(None))


def bound(dataset: Any) -> dict[str, Any]:
    """What the attributes of an object are bound to: plain values as they are, of others which object it is, and none is kept."""
    return {n: value if type(value) in _PLAIN else id(value) for n, value in attributes_of(dataset).items()}


def is_outdated(streams: Iterable[Any], changed_ns: Iterable[int], began_ns: int) -> bool:
    """Whether one of these data sets is of a class of the user's, and set_epoch changed it after its workers had begun.

    Libraries tell the epoch to all their wrappers, also around data that never shuffle.
    """
    pairs = zip(streams, changed_ns, strict=True)
    return any(changed > began_ns and sites.is_users_class(type(one)) for one, changed in pairs)
