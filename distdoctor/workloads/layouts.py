"""Which parameters one optimizer kernel may update together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


def groups_by_layout(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameter groups in which all are plain tensors, or all are sharded over the same mesh.

    The optimizer updates a group with one foreach kernel, which refuses a mixture ("got mixed torch.Tensor and DTensor").
    """
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return [{"params": group} for group in groups.values()]
