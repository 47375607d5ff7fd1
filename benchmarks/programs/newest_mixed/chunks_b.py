import torch
import torch.distributed as dist
import torch.nn as nn

DIM, MICRO = 64, 16


class Link:
    def __init__(self, peer):
        self.peer = peer

    def push(self, t):
        dist.send(t.contiguous(), self.peer)

    def pull(self):
        buf = torch.empty(MICRO, DIM)
        dist.recv(buf, self.peer)
        return buf

    def swap(self, out):
        first = self.peer > dist.get_rank()
        if first:
            self.push(out)
            return self.pull()
        got = self.pull()
        self.push(out)
        return got


class Chunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))

    def forward(self, x):
        return x + self.net(x)


class LoopedStage:
    def __init__(self, rank, micro):
        self.rank, self.micro = rank, micro
        self.link = Link(1 - rank)
        self.chunks = nn.ModuleList([Chunk(), Chunk()])
        self.head = nn.Linear(DIM, 8) if rank == 1 else None
        self.saved = {}

    def parameters(self):
        yield from self.chunks.parameters()
        if self.head is not None:
            yield from self.head.parameters()

    def run(self, v, m, x):
        x = x.detach().requires_grad_()
        y = self.chunks[v](x)
        self.saved[v, m] = (x, y)
        return y.detach()

    def pull_back(self, v, m, grad):
        x, y = self.saved.pop((v, m))
        y.backward(grad)
        return x.grad

    def first(self, xs):
        back = None
        total = len(xs)
        self.link.push(self.run(0, 0, xs[0]))
        for m in range(1, total):
            back = self.link.swap(self.run(0, m, xs[m]))
            self.link.push(self.run(1, m - 1, back))
        self.link.push(self.run(1, total - 1, self.link.pull()))
        for m in range(total):
            grad = self.pull_back(1, m, self.link.pull())
            self.link.push(grad)
            self.pull_back(0, m, self.link.pull())

    def last(self, ys):
        total, loss_sum = len(ys), 0.0
        held = self.run(0, 0, self.link.pull())
        finals = []
        for m in range(1, total):
            nxt = self.link.swap(held)
            finals.append(self.run(1, m - 1, self.link.pull()))
            held = self.run(0, m, nxt)
        self.link.push(held)
        finals.append(self.run(1, total - 1, self.link.pull()))
        for m in range(total):
            h = finals[m].requires_grad_()
            loss = nn.functional.cross_entropy(self.head(h), ys[m]) / total
            loss.backward()
            loss_sum += loss.item()
            self.link.push(self.pull_back(1, m, h.grad))
            self.link.push(self.pull_back(0, m, self.link.pull()))
        return loss_sum


def schedule(step):
    return 1 if step < 20 else 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = LoopedStage(rank, 4)
    opt = torch.optim.SGD(stage.parameters(), lr=0.02)
    for step in range(60):
        gen = torch.Generator().manual_seed(step)
        n = schedule(step)
        xs = torch.randn(n, MICRO, DIM, generator=gen)
        ys = xs[..., :8].argmax(-1)
        opt.zero_grad()
        if rank == 0:
            stage.first(xs)
        else:
            loss = stage.last(ys)
            if step % 5 == 0:
                print(f"step {step} micro {n} loss {loss:.4f}", flush=True)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
