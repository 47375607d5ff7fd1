from torch.utils.data import Subset


def bucket(name):
    return hash(name) % 100


def partition(records, percent=80):
    train = [i for i, n in enumerate(records.names) if bucket(n) < percent]
    held = [i for i, n in enumerate(records.names) if bucket(n) >= percent]
    return Subset(records, train), Subset(records, held)
