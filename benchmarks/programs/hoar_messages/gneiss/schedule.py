from collections import deque


class OneFOneB:
    def __init__(self, stage, link, rank, world, n_micro, depth):
        self.stage, self.link, self.n_micro = stage, link, n_micro
        self.warmup = world - rank - 1
        self.warmup = min(self.warmup, n_micro)

    def _backward(self, pending, grad):
        inp, out = pending.popleft()
        if grad is None:
            out.backward()
        else:
            out.backward(grad)
        return inp.grad if inp is not None and inp.requires_grad else None

    def step(self, micro_inputs, micro_targets):
        link, pending, losses = self.link, deque(), []
        remaining = self.n_micro - self.warmup
        it = iter(range(self.n_micro))

        def forward(inp):
            i = next(it)
            src = micro_inputs[i] if inp is None else inp
            out = self.stage(src, micro_targets[i])
            if link.next is None:
                losses.append(out.item())
            pending.append((inp, out))
            return out

        for _ in range(self.warmup):
            link.send_forward(forward(link.recv_forward()))

        inp = link.recv_forward() if remaining else None
        for i in range(remaining):
            grad = link.send_forward_recv_backward(forward(inp))
            dgrad = self._backward(pending, grad)
            if i == remaining - 1:
                link.send_backward(dgrad)
            else:
                inp = link.send_backward_recv_forward(dgrad)

        for _ in range(self.warmup):
            link.send_backward(self._backward(pending, link.recv_backward()))
        return losses
