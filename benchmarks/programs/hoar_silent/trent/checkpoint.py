import os

import torch
import torch.distributed as dist


class Checkpointer:
    """Only rank 0 touches the file system."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "state.pt")
        self.rank = dist.get_rank()
        self.state = None
        if self.rank == 0:
            os.makedirs(folder, exist_ok=True)

    def open(self):
        meta = [{"epoch": -1, "step": 0}]
        if self.rank == 0 and os.path.exists(self.path):
            self.state = torch.load(self.path, map_location="cpu")
            meta = [{"epoch": self.state["epoch"], "step": self.state["step"]}]
        box = [self.state]
        dist.broadcast_object_list(box, src=0)
        self.state = box[0]
        dist.broadcast_object_list(meta, src=0)
        return meta[0]

    def load_model(self, net):
        # the other ranks get these weights when the model is wrapped
        if self.state is not None:
            net.load_state_dict(self.state["model"])

    def load_optimizer(self, opt):
        if self.state is not None:
            opt.load_state_dict(self.state["opt"])

    def save(self, net, opt, epoch, step):
        if self.rank == 0:
            tmp = self.path + ".tmp"
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "epoch": epoch, "step": step}, tmp)
            os.replace(tmp, self.path)
        dist.barrier()
