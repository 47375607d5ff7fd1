import hashlib
import os
import threading

import torch
import torch.distributed as dist


class AsyncSnapshot:
    """Every process writes its part in the background; the parts are then recorded in one index."""

    def __init__(self, folder):
        self.folder = folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group()
        self.worker = None
        self.index = {}
        os.makedirs(folder, exist_ok=True)

    def _part(self, model, opt):
        items = list(model.state_dict().items())
        mine = {k: v.detach().clone() for k, v in items[self.rank::self.world]}
        if self.rank == 0:
            mine["optim"] = [{k: v.clone() if torch.is_tensor(v) else v for k, v in s.items()}
                             for s in opt.state.values()]
        return mine

    def _write(self, step, part):
        path = os.path.join(self.folder, f"part{self.rank}.pt")
        torch.save(part, path)
        with open(path, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        rows = [None] * self.world
        dist.all_gather_object(rows, {"rank": self.rank, "path": path, "sha": digest}, group=self.group)
        self.index[step] = rows

    def save(self, step, model, opt):
        self.wait()
        self.worker = threading.Thread(target=self._write, args=(step, self._part(model, opt)), name="snapshot")
        self.worker.start()

    def wait(self):
        if self.worker is not None:
            self.worker.join()
            self.worker = None
