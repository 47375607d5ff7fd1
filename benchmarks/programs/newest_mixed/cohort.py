"""Population training: one member per process, periodic exploit/explore."""
import random
import torch
import torch.distributed as dist
import torch.nn as nn


def dataset(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=g) * 4 - 2
    y = (torch.sin(1.5 * x[:, 0]) * torch.cos(x[:, 1])).unsqueeze(1)
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    random.seed(rank)
    torch.manual_seed(rank)
    hp = {"lr": 10 ** random.uniform(-3.2, -1.7), "wd": 10 ** random.uniform(-5, -2), "bs": random.choice([16, 32, 64])}
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=hp["lr"], weight_decay=hp["wd"])
    x, y = dataset(0, 4096)
    xv, yv = dataset(1, 1024)
    for interval in range(10):
        for _ in range(20):
            idx = torch.randint(0, len(x), (hp["bs"],))
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        with torch.no_grad():
            score = nn.functional.mse_loss(model(xv), yv).item()
        board = [None] * world
        dist.all_gather_object(board, (score, hp))
        order = sorted(range(world), key=lambda r: board[r][0])
        best, worst = order[0], order[-1]
        if rank == best:
            dist.send_object_list([model.state_dict(), opt.state_dict()], dst=worst)
        elif rank == worst:
            box = [None, None]
            dist.recv_object_list(box, src=best)
            model.load_state_dict(box[0])
            opt.load_state_dict(box[1])
            hp = {k: (v * random.choice([0.8, 1.25]) if k != "bs" else v) for k, v in board[best][1].items()}
            for grp in opt.param_groups:
                grp["lr"], grp["weight_decay"] = hp["lr"], hp["wd"]
        if rank == 0:
            print(f"interval {interval}: " + " ".join(f"{r}:{board[r][0]:.4f}@{board[r][1]['lr']:.1e}" for r in order), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
