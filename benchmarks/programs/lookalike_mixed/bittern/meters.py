from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class StepReport:
    loss: torch.Tensor
    energy: torch.Tensor
    count: torch.Tensor
    peers: torch.Tensor

    def describe(self):
        return f"loss {float(self.loss / self.peers):.4f} samples {int(self.count)}"


def collect(loss, params, n):
    energy = sum(p.grad.square().sum() for p in params if p.grad is not None)
    row = torch.stack([loss, energy, torch.tensor(float(n)), torch.tensor(1.0)])
    dist.all_reduce(row, op=dist.ReduceOp.SUM)
    return row.unbind()
