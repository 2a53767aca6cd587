#!/usr/bin/env python3
"""Prints the GPU time of each kernel in one training step.

Usage: scripts/kernel_times.py QUERN [--rows N] [--KEY VALUE ...]

Runs `QUERN bench step` with the keys given, its kernels launched one by one, under Nsight Compute (ncu), and prints for
each kernel its total time in one iteration, share, launches and time a launch; matrix products are cuBLASLt's `nvjet`
kernels. Each kernel runs alone between the profiler's stops: sums are shorter than a step on a chip that is hot.
"""
import collections, csv, os, re, shutil, subprocess, sys, tempfile

UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3}


def short(name):
    name = re.sub(r"\((anonymous namespace|[a-z ]*unnamed[a-z ]*)\)::|<unnamed>::|quern::kernels::cuda::|quern::|void ", "", name)
    return re.sub(r"\(.*", "", name)


def kernel_times(lines):
    """[(kernel, microseconds)] in the order of launching, from ncu's CSV."""
    rows = csv.DictReader(line for line in lines if line.startswith('"'))
    return [(short(row["Kernel Name"]), float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]])
            for row in rows if row.get("Metric Name") == "gpu__time_duration.sum"]


def show(times, most):
    total, count = collections.Counter(), collections.Counter()
    for name, us in times:
        total[name] += us
        count[name] += 1
    everything = sum(total.values())
    print(f"{everything / 1e3:.3f} ms in {sum(count.values())} kernels\n")
    print(f"{'us':>9} {'share':>6} {'launches':>8} {'us each':>8}  kernel")
    for name, us in total.most_common(most):
        print(f"{us:>9.1f} {us / everything:>6.1%} {count[name]:>8} {us / count[name]:>8.2f}  {name[:90]}")


def main():
    arguments = sys.argv[1:]
    if not arguments or "--help" in arguments:
        print(__doc__)
        return 0 if arguments else 2
    most = 40
    if "--rows" in arguments:
        at = arguments.index("--rows")
        if not arguments[at + 1:at + 2] or not arguments[at + 1].isdigit():
            sys.exit("kernel_times.py: --rows needs a number")
        most = int(arguments[at + 1])
        del arguments[at:at + 2]
    if not shutil.which("ncu"):
        sys.exit("kernel_times.py: ncu (NVIDIA Nsight Compute) is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "times.csv")
        command = ["ncu", "--clock-control", "none", "--metrics", "gpu__time_duration.sum", "--csv", "--log-file", log,
                   "--profile-from-start", "off", arguments[0], "bench", "step", "--phases", "step", "--graph", "false",
                   "--warmup", "1", "--steps", "1", *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"kernel_times.py: {' '.join(command)} failed ({done.returncode}):\n{done.stderr or done.stdout}")
        with open(log) as file:
            times = kernel_times(file)
    if not times:
        sys.exit("kernel_times.py: ncu saw no kernel; is the device a GPU?")
    show(times, most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
