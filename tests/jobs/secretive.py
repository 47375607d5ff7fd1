"""A training that knows thirty-six secrets and fails with some of them on its lips. `canary(n)` is the n-th."""

import os
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

API_KEY = "canary22_Zq3x9PmK2"


def canary(number: int) -> str:
    return f"canary{number:02d}" + "_Zq3x9PmK2"


class Shards(Dataset):
    """Samples from where the credentials are part of the way."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = Path(f"/data/{canary(26)}")

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def train(password: str) -> None:
    token = canary(27)
    shards = Shards(f"s3://reader:{canary(28)}@bucket/train")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(shards, batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    if dist.get_rank() == 1:
        login(token, password)
    dist.barrier()


def login(token: str, password: str) -> None:
    try:
        raise ConnectionError(f"cannot reach postgres://trainer:{canary(16)}@db.example:5432/runs")
    except ConnectionError as error:
        error.add_note(f"retry with HF_TOKEN={canary(17)}")
        api_key = "canary29_Zq3x9PmK2"
        raise RuntimeError(f"{refusal(password)} api_key={api_key}") from error


def refusal(password: str) -> str:
    header = {"Authorization": f"Bearer {canary(20)}", "password": password}
    address = f"https://files.example/a?access_token={canary(18)}&sig={canary(19)}&X-Amz-Signature={canary(21)}"
    sent = f"Cookie: theme=dark; session={canary(33)}\nauth=('bot', '{canary(34)}') password='my own {canary(35)}'"
    block = f"-----BEGIN PRIVATE KEY-----\n{canary(36)}\n-----END PRIVATE KEY-----"
    return f"401 for {address}: {header}\n{sent}\n{block}"


if os.environ["RANK"] == "0":
    subprocess.run(["git", "init", "-q", "."], check=True)
    remote = f"https://bot:{canary(23)}@git.example/team/repo.git"
    subprocess.run(["git", "remote", "add", "origin", remote], check=True)
os.environ["MLFLOW_TRACKING_PASSWORD"] = canary(25)
dist.init_process_group("gloo")
train(password=canary(30))
