import io
import logging
import time

import torch

log = logging.getLogger("ps")


def pack(obj):
    f = io.BytesIO()
    torch.save(obj, f)
    return f.getvalue()


def unpack(raw):
    return torch.load(io.BytesIO(raw))


class Server:
    """Holds the weights. Clients come and go at their own pace."""

    def __init__(self, store, net, opt, clients):
        self.store, self.net, self.opt = store, net, opt
        self.next = {c: 0 for c in clients}
        self.version = 0

    def publish(self):
        flat = torch.nn.utils.parameters_to_vector(self.net.parameters()).detach()
        self.store.set("weights", pack((self.version, flat)))

    def _apply(self, grads):
        for p, g in zip(self.net.parameters(), grads):
            p.grad = g
        self.opt.step()
        self.version += 1

    def serve(self):
        self.publish()
        while self.next:
            idle = True
            for c, n in list(self.next.items()):
                key = f"push/{c}/{n}"
                if not self.store.check([key]):
                    continue
                idle = False
                message = unpack(self.store.get(key))
                self.store.delete_key(key)
                if message is None:
                    log.info("client %d left after %d pushes", c, n)
                    del self.next[c]
                    continue
                self._apply(message)
                self.next[c] = n + 1
                self.publish()
            if idle:
                time.sleep(0.002)
        log.info("served %d updates", self.version)


class Client:
    def __init__(self, store, me):
        self.store, self.me, self.n = store, me, 0

    def pull(self, net):
        version, flat = unpack(self.store.get("weights"))
        torch.nn.utils.vector_to_parameters(flat, net.parameters())
        return version

    def push(self, grads):
        self.store.set(f"push/{self.me}/{self.n}", pack(grads))
        self.n += 1

    def leave(self):
        self.push(None)
