import torch
import torch.distributed as dist


class HaloExchange(torch.autograd.Function):
    """Rows of the own nodes -> own rows followed by the rows of all halo nodes."""

    @staticmethod
    def forward(ctx, rows, part):
        ctx.part = part
        total = part.adj.size(1)
        full = rows.new_zeros(total, rows.size(1))
        full[: rows.size(0)] = rows
        for peer in sorted(part.send_ids):
            inbox = rows.new_empty(part.halo_slots[peer].stop - part.halo_slots[peer].start, rows.size(1))
            outgoing = dist.isend(rows[part.send_ids[peer]].contiguous(), dst=peer)
            dist.recv(inbox, src=peer)
            outgoing.wait()
            full[part.halo_slots[peer]] = inbox
        return full

    @staticmethod
    def backward(ctx, grad):
        part = ctx.part
        own = grad[: part.features.size(0)].clone()
        for peer in sorted(part.send_ids):
            inbox = grad.new_empty(len(part.send_ids[peer]), grad.size(1))
            outgoing = dist.isend(grad[part.halo_slots[peer]].contiguous(), dst=peer)
            dist.recv(inbox, src=peer)
            outgoing.wait()
            own.index_add_(0, part.send_ids[peer], inbox)
        return own, None
