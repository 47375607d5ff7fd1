"""Checkpoints go to an object table; a worker thread does the serialising and sending."""
import io
import json
import os
import queue
import sqlite3
import threading
from concurrent.futures import Future

import torch


class Vault:
    def __init__(self, folder, depth=2):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.jobs = queue.Queue(maxsize=depth)
        self.pending, self.entries = [], []
        self.thread = threading.Thread(target=self._work, name="vault", daemon=True)
        self.thread.start()

    def put(self, key, payload):
        ticket = Future()
        self.jobs.put((key, payload, ticket))
        self.pending.append(ticket)
        return ticket

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        for ticket in self.pending:
            ticket.result()

    def get(self, key):
        with sqlite3.connect(os.path.join(self.folder, "objects.db")) as db:
            (blob,) = db.execute("SELECT body FROM objects WHERE key = ?", (key,)).fetchone()
        return torch.load(io.BytesIO(blob), map_location="cpu")

    def _work(self):
        db = sqlite3.connect(os.path.join(self.folder, "objects.db"))
        db.execute("CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, body BLOB)")
        while (job := self.jobs.get()) is not None:
            key, payload, ticket = job
            try:
                stream = io.BytesIO()
                torch.save(payload, stream)
                body = stream.getvalue()
                with db:
                    db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", (key, body))
                self._ledger(key, len(body))
                ticket.set_result(len(body))
            except Exception as err:
                ticket.set_exception(err)
        db.close()

    def _ledger(self, key, size):
        self.entries.append({"key": key, "bytes": size})
        path = os.path.join(self.folder, "ledger.json")
        with open(path + ".new", "w") as f:
            json.dump(self.entries, f)
        os.replace(path + ".new", path)
