"""How long a user waits before anything happens: `import flare` and `flare --help`, each in a fresh process.

    .venv/bin/python benchmarks/startup.py

Beside them the start of Python itself and `import torch`, measured in turns in the same run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import flare": ["-c", "import flare"],
    "import flare, first use": ["-c", "from flare import FLARE, mix"],
    "flare --help": ["-m", "flare", "--help"],
    "flare train --help": ["-m", "flare", "train", "--help"],
    "flare data make darcy --help": ["-m", "flare", "data", "make", "darcy", "--help"],
}


def seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main(rounds: int = 7) -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    print(f"{'':<30} median s   slowest s")
    for name, taken in times.items():
        print(f"{name:<30} {statistics.median(taken):8.3f}   {max(taken):8.3f}")


if __name__ == "__main__":
    main()
