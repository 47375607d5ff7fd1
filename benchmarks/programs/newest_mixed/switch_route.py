"""Expert parallelism, top-1 routing, one expert per process, variable all-to-all."""
import torch
import torch.distributed as dist
import torch.nn as nn

D, CLASSES = 24, 6


class Shuffle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    embed, router, head = nn.Linear(D, D), nn.Linear(D, world), nn.Linear(D, CLASSES)
    torch.manual_seed(10 + rank)
    expert = nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))
    shared = [p for m in (embed, router, head) for p in m.parameters()]
    opt = torch.optim.Adam(shared + list(expert.parameters()), lr=2e-3)
    w = torch.randn(D, CLASSES, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(80 + rank)
    for step in range(120):
        x = torch.randn(64, D, generator=g) + 0.3 * rank
        y = (torch.tanh(x) @ w).argmax(1)
        h = embed(x)
        prob = router(h).softmax(1)
        top, where = prob.max(1)
        order = where.argsort(stable=True)
        send_t = torch.bincount(where, minlength=world)
        recv_t = torch.empty_like(send_t)
        dist.all_to_all_single(recv_t, send_t)
        send, recv = send_t.tolist(), recv_t.tolist()
        inbox = Shuffle.apply(h[order], send, recv)
        back = Shuffle.apply(expert(inbox), recv, send)
        out = torch.empty_like(back).index_copy(0, order, back)
        balance = world * (prob.mean(0) * torch.bincount(where, minlength=world) / len(x)).sum()
        loss = nn.functional.cross_entropy(head(h + top[:, None] * out), y) + 0.01 * balance
        opt.zero_grad()
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= world
        for p in expert.parameters():
            p.grad /= world
        opt.step()
        if step % 20 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.4f} tokens to my expert {sum(recv)}", flush=True)
    for p in shared:
        ref = p.detach().clone()
        dist.broadcast(ref, 0)
        assert torch.equal(ref, p)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
