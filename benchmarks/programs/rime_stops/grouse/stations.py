"""Writes the weather-station tables, one CSV per station."""
import csv
import os
import random


def write_station(path, station, rows=1920, sensors=20):
    rng = random.Random(station)
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow([f"s{i}" for i in range(sensors)] + ["target"])
        for n in range(rows):
            x = [rng.gauss(0, 1) for _ in range(sensors)]
            y = x[0] * x[1] + 0.5 * x[2] - abs(x[3]) + rng.gauss(0, 0.05)
            fields = [f"{v:.4f}" for v in x]
            if station == 2 and 700 <= n < 703:
                fields[5] = "n/a"
            out.writerow(fields + [f"{y:.4f}"])


def ensure_tables(root, stations):
    os.makedirs(root, exist_ok=True)
    paths = []
    for s in range(stations):
        path = os.path.join(root, f"station{s}.csv")
        write_station(path, s)
        paths.append(path)
    return paths
