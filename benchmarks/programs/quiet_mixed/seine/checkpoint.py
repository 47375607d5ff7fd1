import torch
import torch.distributed as dist


def store(workdir, net, optim, sched, epoch):
    if dist.get_rank() == 0:
        workdir.mkdir(exist_ok=True)
        torch.save({"net": net.state_dict(), "optim": optim.state_dict(), "sched": sched.state_dict(), "epoch": epoch},
                   workdir / "last.pt.tmp")
        (workdir / "last.pt.tmp").rename(workdir / "last.pt")
    dist.barrier()


def restore(workdir, net, optim, sched):
    epoch = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        state = torch.load(workdir / "last.pt", map_location="cpu")
        net.load_state_dict(state["net"])
        optim.load_state_dict(state["optim"])
        sched.load_state_dict(state["sched"])
        epoch.fill_(state["epoch"])
    dist.broadcast(epoch, 0)
    return int(epoch)
