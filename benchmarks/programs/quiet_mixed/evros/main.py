import torch
import torch.distributed as dist

from actor import Actor
from learner import Learner
from policy import Policy, flat, load_flat

ITERATIONS, EPISODES, HORIZON = 15, 24, 20


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = Policy()
    learner = Learner(policy) if rank == 0 else None
    actor = Actor(policy, seed=10 * rank, episodes=EPISODES, horizon=HORIZON) if rank > 0 else None
    weights = flat(policy)
    for it in range(ITERATIONS):
        if rank == 0:
            weights.copy_(flat(policy))
        dist.broadcast(weights, 0)
        load_flat(policy, weights)
        shape = (EPISODES, HORIZON, Policy.record)
        mine = actor.rollouts() if actor else torch.zeros(shape)
        boxes = [torch.empty(shape) for _ in range(world)] if rank == 0 else None
        dist.gather(mine, boxes, dst=0)
        if learner:
            reward = learner.improve(torch.cat(boxes[1:]))
            print(f"iteration {it} reward {reward:.3f}", flush=True)
    if rank == 0:
        weights.copy_(flat(policy))
    dist.broadcast(weights, 0)
    load_flat(policy, weights)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
