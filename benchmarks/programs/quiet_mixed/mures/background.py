import copy
import os
import threading

import torch


class Snapshotter:
    """Copies the state in the training thread, writes it in another one."""

    def __init__(self, folder, enabled):
        self.folder, self.enabled = folder, enabled
        self.thread = None

    def take(self, step, net, optim, sched):
        if not self.enabled:
            return
        self.drain()
        state = copy.deepcopy({"step": step, "net": net.state_dict(), "optim": optim.state_dict(), "sched": sched.state_dict()})
        self.thread = threading.Thread(target=self._write, args=(state,))
        self.thread.start()

    def _write(self, state):
        self.folder.mkdir(exist_ok=True)
        tmp = self.folder / "latest.tmp"
        with open(tmp, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, self.folder / "latest.pt")

    def drain(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def restore(self, net, optim, sched):
        state = torch.load(self.folder / "latest.pt", map_location="cpu")
        net.load_state_dict(state["net"])
        optim.load_state_dict(state["optim"])
        sched.load_state_dict(state["sched"])
        return state["step"]
