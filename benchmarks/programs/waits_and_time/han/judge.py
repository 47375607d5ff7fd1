import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JudgeServer:
    """Scores token sequences over HTTP; its tables take a while to load."""

    def __init__(self, vocab, warm_seconds):
        self.vocab, self.warm_seconds = vocab, warm_seconds
        self.ready = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _reply(self, obj):
                body = json.dumps(obj).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self._reply({"ready": outer.ready.is_set()})

            def do_POST(self):
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
                self._reply({"scores": [outer.judge(r) for r in rows]})

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]

    def _load(self):
        time.sleep(self.warm_seconds)
        self.bonus = [((i * 7) % self.vocab) / self.vocab for i in range(self.vocab)]
        self.ready.set()

    def judge(self, row):
        climbs = sum(b == (a + 1) % self.vocab for a, b in zip(row, row[1:]))
        return climbs + 0.1 * sum(self.bonus[t] for t in row)

    def start(self):
        threading.Thread(target=self._load, name="judge-load", daemon=True).start()
        threading.Thread(target=self.http.serve_forever, name="judge-http", daemon=True).start()
        return self

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
