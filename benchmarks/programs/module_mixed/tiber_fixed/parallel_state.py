"""Communicators by role. A layout says which ranks hold which part of the model."""
from datetime import timedelta

import torch.distributed as dist

LAYOUT = {
    "vision": (0, 1),
    "language": (1, 2),
    "fusion": (0, 2),
    "router": (0, 1, 2),
    "memory": (1, 2),
    "audio": (0, 1),
}

_GROUPS = {}


def roles():
    """Every role that is switched on, aliases folded away."""
    alias = {"text": "language", "image": "vision"}
    enabled = ["image", "text", "fusion", "router", "memory", "audio", "vision"]
    return {alias.get(name, name) for name in enabled}


def initialize(timeout=60):
    for role in sorted(roles()):
        _GROUPS[role] = dist.new_group(list(LAYOUT[role]), timeout=timedelta(seconds=timeout))


def members(role):
    return LAYOUT[role]


def group(role):
    return _GROUPS[role]


def holds(role):
    return dist.get_rank() in LAYOUT[role]
