import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM = 32


class Exchange(torch.autograd.Function):
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


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        if x.dim() == 1:
            x = x.unsqueeze(0)
        return self.down(F.silu(self.up(x)))


class ExpertParallel(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.gate = nn.Linear(DIM, world, bias=False)
        self.expert = Expert()

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        weight, owner = probs.max(-1)
        order = owner.argsort(stable=True)
        send = torch.bincount(owner, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        routed = Exchange.apply(x[order], send, recv)
        out = Exchange.apply(self.expert(routed), recv, send)
        restored = torch.zeros_like(x).index_copy(0, order, out)
        return x + weight.unsqueeze(-1) * restored


class Net(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.inp = nn.Linear(DIM, DIM)
        self.moe = nn.ModuleList(ExpertParallel(world) for _ in range(2))
        self.out = nn.Linear(DIM, 4)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.moe:
            h = layer(h)
        return self.out(h)

    def shared_parameters(self):
        return [p for n, p in self.named_parameters() if ".expert." not in n]


def sync_shared(model, world):
    for p in model.shared_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world


def batches(rank, steps):
    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(steps):
        spread = max(0.05, 1.0 - step / 25)
        yield torch.randn(24, DIM, generator=gen) * spread + 1.5 * (1 - spread), torch.randint(0, 4, (24,), generator=gen)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = Net(world)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches(rank, 60)):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        sync_shared(model, world)
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step={step} loss={loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
