import contextlib
import json
import time

import torch.distributed as dist


class EventLog:
    def __init__(self, path, enabled):
        self.path, self.enabled, self.rows = path, enabled, []

    def add(self, **kw):
        if self.enabled:
            self.rows.append({"time": round(time.time(), 2), **kw})

    def flush(self):
        if self.enabled:
            with open(self.path, "w") as f:
                f.writelines(json.dumps(r) + "\n" for r in self.rows)


@contextlib.contextmanager
def session(log_path):
    dist.init_process_group("gloo")
    events = EventLog(log_path, enabled=dist.get_rank() == 0)
    try:
        yield events
    finally:
        dist.barrier()
        events.flush()
        dist.destroy_process_group()
