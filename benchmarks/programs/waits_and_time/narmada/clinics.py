import torch


def clinic_batches(patients, args, clinic, epoch, train):
    """Every clinic keeps its own patients; the last fifth is for validation."""
    g = torch.Generator().manual_seed(args.seed * 100 + clinic)
    x = torch.randn(patients, args.visits, args.features, generator=g)
    rule = torch.randn(args.features, generator=torch.Generator().manual_seed(args.seed))
    trend = (x @ rule)[:, -3:].mean(1) - 0.5 * (x @ rule)[:, :3].mean(1)
    y = (trend + 0.4 * torch.randn(patients, generator=g) > 0).float()
    cut = patients * 4 // 5
    if train:
        order = torch.randperm(cut, generator=torch.Generator().manual_seed(epoch * 91 + clinic))
    else:
        order = torch.arange(cut, patients)
    for idx in order.split(args.batch):
        yield x[idx], y[idx]
