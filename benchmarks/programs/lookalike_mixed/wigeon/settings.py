from datetime import timedelta

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import _get_default_store


def fetch(key, default, seconds):
    store = _get_default_store()
    try:
        store.wait([key], timedelta(seconds=seconds))
    except DistStoreError:
        return default
    return store.get(key).decode()
