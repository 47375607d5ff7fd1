"""1F1B without interleaving."""
from comm import PipeComm


def forward_step(stage, act, batch, losses, scale):
    out = stage(act if act is not None else batch["tokens"], batch["labels"])
    if stage.is_last:
        losses.append(out.detach())
        out = out * scale
    return out


def backward_step(act, out, grad):
    out.backward(grad)
    return act.grad if act is not None else None


def train_batch(stage, micro_batches, comm: PipeComm):
    num = len(micro_batches)
    warmup = min(comm.size - comm.rank - 1, num)
    steady = num - warmup
    scale = 1.0 / num
    acts, outs, losses = [], [], []
    feed = iter(micro_batches)

    for _ in range(warmup):
        act = comm.recv_forward()
        out = forward_step(stage, act, next(feed), losses, scale)
        comm.send_forward(out)
        acts.append(act)
        outs.append(out)

    act = comm.recv_forward() if steady else None
    for i in range(steady):
        out = forward_step(stage, act, next(feed), losses, scale)
        acts.append(act)
        outs.append(out)
        grad = comm.send_forward_recv_backward(out)
        in_act, done = acts.pop(0), outs.pop(0)
        in_grad = backward_step(in_act, done, grad)
        if i == steady - 1:
            comm.send_backward(in_grad)
        else:
            act = comm.send_backward_recv_forward(in_grad)

    for _ in range(warmup):
        grad = comm.recv_backward()
        in_act, done = acts.pop(0), outs.pop(0)
        comm.send_backward(backward_step(in_act, done, grad))
    return losses
