"""Very small request/reply layer on top of torch.distributed send/recv."""
import logging
import pickle

import torch
import torch.distributed as dist

log = logging.getLogger("rpc")


def send_obj(obj, dst):
    buf = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    dist.send(torch.tensor([buf.numel()]), dst)
    dist.send(buf, dst)


def recv_obj(src=None):
    size = torch.zeros(1, dtype=torch.long)
    sender = dist.recv(size, src)
    buf = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(buf, sender)
    return sender, pickle.loads(buf.numpy().tobytes())


class Client:
    def __init__(self, server=0):
        self.server = server

    def call(self, op, **kwargs):
        send_obj((op, kwargs), self.server)
        _, reply = recv_obj(self.server)
        return reply

    def close(self):
        send_obj(("bye", {}), self.server)


class Server:
    def __init__(self, handlers, clients):
        self.handlers = handlers
        self.clients = set(clients)
        self.served = 0

    def run(self):
        while self.clients:
            sender, (op, kwargs) = recv_obj()
            if op == "bye":
                self.clients.discard(sender)
                continue
            try:
                reply = self.handlers[op](**kwargs)
            except Exception as exc:
                log.warning("%s from rank %d failed: %r", op, sender, exc)
                reply = {"error": repr(exc)}
            self.served += 1
            send_obj(reply, sender)
        return self.served
