import os

import torch
import torch.distributed as dist


class CheckpointManager:
    def __init__(self, directory):
        self.path = os.path.join(directory, "last.pt")

    def save(self, model, optimizer, scheduler, step):
        if dist.get_rank() == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
            }
            tmp = self.path + ".tmp"
            torch.save(state, tmp)
            os.replace(tmp, self.path)
        dist.barrier()

    def restore(self, model, optimizer, scheduler):
        """Reads the file once and shares what the other processes need."""
        step = torch.zeros(1, dtype=torch.long)
        shared = [None, None]
        if dist.get_rank() == 0:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            shared = [state["scheduler"], state["optimizer"]]
            step.fill_(state["step"])
        for t in list(model.parameters()) + list(model.buffers()):
            dist.broadcast(t.data, src=0)
        dist.broadcast_object_list(shared, src=0)
        dist.broadcast(step, src=0)
        scheduler.load_state_dict(shared[0])
        optimizer.load_state_dict(shared[1])
        for group, lr in zip(optimizer.param_groups, scheduler.get_last_lr()):
            group["lr"] = lr
        return int(step)
