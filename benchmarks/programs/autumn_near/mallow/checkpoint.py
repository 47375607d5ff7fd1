import os

import torch
import torch.distributed as dist


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.rank = dist.get_rank()

    def _name(self, kind, rank=0):
        return os.path.join(self.folder, f"{kind}_{rank:05d}.pt")

    def save(self, net, opt, gen, step):
        if self.rank == 0:
            torch.save({"net": net.state_dict(), "step": step}, self._name("model"))
        torch.save({"gen": gen.get_state()}, self._name("data", self.rank))
        torch.save(opt.state_dict(), self._name("optim", self.rank))
        dist.barrier()

    def load(self, net, opt, gen):
        if not os.path.exists(self._name("model")):
            return 0
        ck = torch.load(self._name("model"), weights_only=True)
        net.load_state_dict(ck["net"])
        gen.set_state(torch.load(self._name("data", self.rank), weights_only=True)["gen"])
        opt.load_state_dict(torch.load(self._name("optim"), weights_only=True))
        return ck["step"]
