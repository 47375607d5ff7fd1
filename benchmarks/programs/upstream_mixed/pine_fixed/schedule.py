import torch


def one_f_one_b(module, channel, rank, world, inputs, loss_fn, count):
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards."""
    warmup = min(world - rank - 1, count)
    pending = []
    losses = []

    def forward(i, received):
        x = inputs[i] if received is None else received.requires_grad_()
        out = module(x)
        if rank == world - 1:
            out = loss_fn(out, i) / count
            losses.append(out.detach())
        pending.append((x, out))
        return out.detach()

    def backward(grad):
        x, out = pending.pop(0)
        out.backward(grad)
        return x.grad if x.is_floating_point() else None

    for i in range(warmup):
        channel.send_forward(forward(i, channel.recv_forward()))
    received = channel.recv_forward() if count > warmup else None
    for i in range(warmup, count):
        out = forward(i, received)
        grad = channel.send_forward_recv_backward(out)
        back = backward(grad)
        if i < count - 1:
            received = channel.send_backward_recv_forward(back)
        else:
            channel.send_backward(back)
    for _ in range(warmup):
        channel.send_backward(backward(channel.recv_backward()))
    return torch.stack(losses).sum().item() if losses else None
