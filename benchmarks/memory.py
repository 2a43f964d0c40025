"""How much memory training takes at most: `fit` of a distributed model against a loop by hand.

    python benchmarks/memory.py [--rounds 3]

Each way trains the same model on two replicas in a process of its own, which then says how much
it had at most. Importing TensorFlow is most of it, so what importing alone takes is printed too.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

WAYS = ("import alone", "hand-tuned loop", "distribute")


def train(way: str) -> None:
    """Trains in this process, and prints its peak in MiB."""
    import fit
    import keras

    import distlab as dl

    dl.split_devices(2)
    if way != "import alone":
        keras.utils.set_random_seed(0)
        bench = fit.Bench(fit.MLP)
        strategy = dl.make_strategy("mirrored")
        if way == "distribute":
            bench.fit(way, dl.distribute(bench.build, strategy))()
        else:
            bench.loop(strategy, tuned=True)()
    unit = 1024**2 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB on Linux
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)


def main() -> None:
    """Prints the median peak of each way."""
    parser = argparse.ArgumentParser(description="Peak memory of training, against a loop.")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each (default 3)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        train(options.way)
        return
    peaks = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way]
        runs = [
            subprocess.run(command, check=True, capture_output=True, text=True)
            for _ in range(options.rounds)
        ]
        peaks[way] = statistics.median(float(run.stdout.split()[-1]) for run in runs)
        print(f"{way:<20}{peaks[way]:8.0f} MiB")
    ratio = peaks["distribute"] / peaks["hand-tuned loop"]
    print(f"distribute has {ratio:.2f} of the peak of the hand-tuned loop")


if __name__ == "__main__":
    main()
