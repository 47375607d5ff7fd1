"""Training with a barrier before and after each step."""

from distdoctor.offers import Option, Strategy

PATIENT = Strategy(
    name="patient",
    summary="one process per rank, all of them waiting for each other",
    train="toylab.patient:train",
    options=(Option("politeness", "Barriers around each step.", int, 2),),
)


def train(training):
    import torch
    import torch.distributed as dist

    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    for _ in range(3):
        for _ in range(training.option("politeness")):
            dist.barrier()
        parameter.sum().backward()
        optimizer.step()
