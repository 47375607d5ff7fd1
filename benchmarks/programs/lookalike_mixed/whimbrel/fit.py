import torch
import torch.distributed as dist


def unwrap(model):
    return getattr(model, "module", model)


def fit(model, loader, epochs):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    net = unwrap(model)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for (x,) in loader:
            opt.zero_grad()
            loss = net.objective(x)
            loss.backward()
            opt.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {float(total) / len(loader):.4f}", flush=True)
