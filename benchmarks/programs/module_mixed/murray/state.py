import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optim = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optim}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


class LoopState(Stateful):
    def __init__(self, sched):
        self.step, self.sched = 0, sched

    def state_dict(self):
        return {"step": self.step, "sched": self.sched.state_dict()}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.sched.load_state_dict(state["sched"])


def save(path, app, loop):
    dcp.save({"app": app, "loop": loop}, checkpoint_id=path)
    dist.barrier()


def load(path, app, loop):
    dcp.load({"app": app, "loop": loop}, checkpoint_id=path)
