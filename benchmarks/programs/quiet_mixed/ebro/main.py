import argparse

import torch
import torch.distributed as dist

from agent import Agent
from envs import Reacher
from ppo import collect, update

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=12)
parser.add_argument("--num-envs", type=int, default=16)
parser.add_argument("--horizon", type=int, default=24)
parser.add_argument("--seed", type=int, default=40)


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    env = Reacher(args.num_envs, args.seed + 1000 * rank)
    agent = Agent(env.obs_dim, env.act_dim)
    optim = torch.optim.Adam(agent.net.parameters(), lr=1e-3)
    for it in range(args.iterations):
        buf = collect(agent, env, args.horizon)
        update(agent, optim, buf, epochs=2, minibatches=2)
        score = buf["rew"].mean()
        dist.all_reduce(score)
        if rank == 0:
            print(f"iteration {it} reward {score.item() / dist.get_world_size():.3f}", flush=True)
            torch.save(agent.state(), "agent.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
