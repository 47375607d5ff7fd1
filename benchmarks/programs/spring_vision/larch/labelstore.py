import gzip
import json
import logging
import os
import threading

log = logging.getLogger("detector.labels")


class LabelStore:
    """Parsed annotations plus per-image training statistics.

    The main process updates the statistics after every step, loader workers
    read labels and statistics, and the writer rank keeps a copy on disk so
    that a run can be inspected while it is going on.
    """

    def __init__(self, annotations):
        self._lock = threading.Lock()
        os.register_at_fork(before=self._lock.acquire,
                            after_in_parent=self._lock.release,
                            after_in_child=self._lock.release)
        self._entries = {str(i): {"boxes": boxes, "classes": classes, "seen": 0, "loss": None}
                         for i, (boxes, classes) in enumerate(annotations)}
        self._stop = threading.Event()
        self._saver = None

    def __len__(self):
        return len(self._entries)

    def get(self, index):
        with self._lock:
            e = self._entries[str(index)]
            return e["boxes"], e["classes"], e["seen"]

    def record(self, indices, losses):
        with self._lock:
            for i, value in zip(indices, losses):
                e = self._entries[str(i)]
                e["seen"] += 1
                e["loss"] = round(value, 5)

    def autosave(self, path, every=0.4):
        self._saver = threading.Thread(target=self._save_loop, args=(path, every), daemon=True)
        self._saver.start()

    def _save_loop(self, path, every):
        while not self._stop.wait(every):
            self.save(path)

    def save(self, path):
        tmp = path + ".part"
        with self._lock:
            with gzip.open(tmp, "wt") as fh:
                json.dump(self._entries, fh)
        os.replace(tmp, path)

    def close(self, path=None):
        self._stop.set()
        if self._saver is not None:
            self._saver.join()
            self.save(path)
            log.info("label statistics saved to %s", path)
