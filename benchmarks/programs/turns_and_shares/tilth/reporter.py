"""Background reporter: merges per-rank training summaries while training goes on."""
import json
import queue
import threading

import torch
import torch.distributed as dist


class Reporter(threading.Thread):
    def __init__(self, group, path):
        super().__init__(daemon=True)
        self.group = group
        self.path = path
        self.rank = dist.get_rank()
        self.todo = queue.Queue()

    def submit(self, step, losses, weight):
        self.todo.put((step, torch.tensor(losses), weight.detach().clone()))

    def close(self):
        self.todo.put(None)
        self.join()

    def spectrum(self, weight):
        values = torch.linalg.svdvals(weight)
        return {"top": values[0].item(), "rank90": int((values.cumsum(0) < 0.9 * values.sum()).sum())}

    def run(self):
        while True:
            item = self.todo.get()
            if item is None:
                return
            step, losses, weight = item
            record = {"step": step}
            if self.rank == 0:
                record.update(self.spectrum(weight))
            summary = torch.stack([losses.sum(), losses.square().sum(), torch.tensor(float(len(losses)))])
            dist.all_reduce(summary, group=self.group)
            mean = (summary[0] / summary[2]).item()
            record["loss"] = mean
            record["spread"] = (summary[1] / summary[2] - mean ** 2).clamp(min=0).sqrt().item()
            if self.rank == 0:
                with open(self.path, "a") as f:
                    f.write(json.dumps(record) + "\n")
                print(f"report {record}", flush=True)
