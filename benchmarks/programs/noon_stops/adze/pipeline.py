import torch
import torch.distributed as dist


class P2P:
    def __init__(self, stage, stages, act_shape):
        self.stage, self.stages = stage, stages
        self.shape = act_shape

    @property
    def first(self):
        return self.stage == 0

    @property
    def last(self):
        return self.stage == self.stages - 1

    def recv_forward(self):
        if self.first:
            return None
        x = torch.empty(self.shape)
        dist.recv(x, src=self.stage - 1)
        return x.requires_grad_()

    def send_forward(self, y):
        if not self.last:
            dist.send(y.detach().contiguous(), dst=self.stage + 1)

    def recv_backward(self):
        if self.last:
            return None
        g = torch.empty(self.shape)
        dist.recv(g, src=self.stage + 1)
        return g

    def send_backward(self, g):
        if not self.first:
            dist.send(g.contiguous(), dst=self.stage - 1)

    def send_forward_recv_backward(self, y):
        self.send_forward(y)
        return self.recv_backward()

    def send_backward_recv_forward(self, g):
        self.send_backward(g)
        return self.recv_forward()


class OneFOneB:
    def __init__(self, module, comm, loss_fn):
        self.module, self.comm, self.loss_fn = module, comm, loss_fn

    def forward_step(self, x_in, micro):
        out = self.module(micro[0] if self.comm.first else x_in)
        if self.comm.last:
            return self.loss_fn(out, micro[1]) / self.count
        return out

    def backward_step(self, x_in, out, grad):
        out.backward(grad)
        return None if x_in is None else x_in.grad

    def run(self, micros):
        self.count = len(micros)
        warm = min(self.comm.stages - self.comm.stage - 1, self.count)
        steady = self.count - warm
        inputs, outputs, losses = [], [], []

        for i in range(warm):
            x = self.comm.recv_forward()
            y = self.forward_step(x, micros[i])
            self.comm.send_forward(y)
            inputs.append(x)
            outputs.append(y)

        x = self.comm.recv_forward() if steady else None
        for i in range(steady):
            y = self.forward_step(x, micros[warm + i])
            if self.comm.last:
                losses.append(y.item())
            inputs.append(x)
            outputs.append(y)
            g = self.comm.send_forward_recv_backward(y)
            xi, yi = inputs.pop(0), outputs.pop(0)
            gi = self.backward_step(xi, yi, g)
            if i == steady - 1:
                self.comm.send_backward(gi)
            else:
                x = self.comm.send_backward_recv_forward(gi)

        for _ in range(warm):
            g = self.comm.recv_backward()
            xi, yi = inputs.pop(0), outputs.pop(0)
            self.comm.send_backward(self.backward_step(xi, yi, g))
        return sum(losses)
