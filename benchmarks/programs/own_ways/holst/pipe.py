import torch
import torch.distributed as dist


class Link:
    """Point-to-point connection between two neighbouring stages."""

    def __init__(self, peer, shape):
        self.peer = peer
        self.shape = shape
        self.pending = []

    def send(self, tensor, tag):
        outgoing = tensor.detach().contiguous()
        self.pending.append((dist.isend(outgoing, self.peer, tag=tag), outgoing))

    def receive(self, tag):
        buffer = torch.empty(self.shape)
        dist.recv(buffer, self.peer, tag=tag)
        return buffer

    def flush(self):
        for request, _ in self.pending:
            request.wait()
        self.pending.clear()


class FillDrain:
    """All micro-batches forward, then all backward."""

    def __init__(self, stage, module, link, micro):
        self.stage, self.module, self.link, self.micro = stage, module, link, micro

    def run_front(self, chunks):
        outputs = []
        for k, ids in enumerate(chunks):
            out = self.module(ids)
            self.link.send(out, tag=k)
            outputs.append(out)
        for k, out in enumerate(outputs):
            grad = self.link.receive(tag=1000 + k)
            out.backward(grad)
        self.link.flush()

    def run_back(self, labels, loss_fn):
        held, losses = [], []
        for k, y in enumerate(labels):
            h = self.link.receive(tag=k).requires_grad_(True)
            loss = loss_fn(self.module(h), y) / self.micro
            held.append((h, loss))
            losses.append(loss.item())
        for k, (h, loss) in enumerate(held):
            loss.backward()
            self.link.send(h.grad, tag=1000 + k)
            self.link.flush()
        return sum(losses)
