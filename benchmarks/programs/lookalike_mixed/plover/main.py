import torch
import torch.distributed as dist

from block import Block
from parallel import Layout, finish_backward


def main():
    dist.init_process_group("gloo")
    layout = Layout(dist.group.WORLD)
    torch.manual_seed(3)
    model = Block(dim=24, heads=4, vocab=30, layout=layout)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(19)
    for step in range(60):
        t = torch.randint(0, 30, (8, 7), generator=g)
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, :-1].roll(1, 1).flatten())
        loss.backward()
        finish_backward(model, layout, step)
        opt.step()
        if step % 15 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {float(loss.detach()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
