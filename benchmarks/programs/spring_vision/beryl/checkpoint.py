import os

import torch


def atomic_save(obj, path):
    tmp = f"{path}.{os.getpid()}.tmp"
    torch.save(obj, tmp)
    os.replace(tmp, path)


class Checkpointer:
    def __init__(self, accelerator, root, model, optimizer, scheduler, loader):
        self.acc, self.root = accelerator, root
        self.model, self.optimizer, self.scheduler, self.loader = model, optimizer, scheduler, loader
        os.makedirs(root, exist_ok=True)

    def path(self, name):
        return os.path.join(self.root, name)

    def save(self, step):
        if self.acc.is_main_process:
            atomic_save({"model": self.acc.unwrap_model(self.model).state_dict(),
                         "optimizer": self.optimizer.state_dict(),
                         "scheduler": self.scheduler.state_dict(), "step": step}, self.path("train_state.pt"))
        atomic_save({"loader": self.loader.state_dict(), "rng": torch.get_rng_state()},
                    self.path(f"dataloader-{self.acc.process_index}.pt"))
        self.acc.wait_for_everyone()

    def resume(self):
        if not os.path.exists(self.path("train_state.pt")):
            return 0
        state = torch.load(self.path("train_state.pt"), weights_only=False)
        self.acc.unwrap_model(self.model).load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        data = torch.load(self.path(f"dataloader-{self.acc.process_index}.pt"), weights_only=False)
        self.loader.load_state_dict(data["loader"])
        torch.set_rng_state(data["rng"])
        return state["step"]
