import os
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


class CheckpointManager:
    """Writes full checkpoints and keeps the most recent ones at hand for weight averaging."""

    def __init__(self, directory, keep=5):
        self.directory = directory
        self.keep = keep
        self.snapshots = OrderedDict()
        if dist.get_rank() == 0:
            os.makedirs(directory, exist_ok=True)

    def save(self, model, step):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        self.snapshots[step] = {k: v.clone() for k, v in state.items()}
        while len(self.snapshots) > self.keep:
            self.snapshots.popitem(last=False)
        if dist.get_rank() == 0:
            torch.save(state, os.path.join(self.directory, "last.pt"))
        dist.barrier()

    def average(self):
        states = list(self.snapshots.values())
        if not states:
            return {}
        return {k: sum(s[k] for s in states) / len(states) for k in states[0]}

    def export(self):
        averaged = self.average()
        if dist.get_rank() == 0:
            torch.save(averaged, os.path.join(self.directory, "averaged.pt"))
        dist.barrier()
