#!/usr/bin/env python3
"""Makes the result tables and sample outputs of README.md from benchmarks/results.

Usage: scripts/readme_tables.py [--check] [--readme FILE] [--results FOLDER]

What stands between <!-- results:KIND --> and <!-- /results:KIND --> (train, verify, bench,
sgemm, compare, attention) becomes
the table of the result files of that kind; what stands between <!-- output:NAME --> and
<!-- /output:NAME --> becomes the text of results/NAME.txt, whose lines of commands begin with "$ ".
With --check nothing is written, and the exit status is 1 when the file would change.
"""
import argparse, difflib, glob, json, os, re, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The bounds that a run has to meet, and what benchmarks/peers/torch_train_shakespeare.py reached:
# size -> (steps from which they apply, which value, bound, PyTorch's).
REFERENCE = {"shakespeare-cpu": (2000, "final", 1.72, "1.688, 1.700"),
             "shakespeare-gpu": (500, "best", 1.53, "1.515 to 1.526")}
QUANTITIES = ("logits", "loss", "gradients", "losses", "grad_norms", "weights")


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def commands(entries):
    seen = dict.fromkeys(f"- `{e['command']}` ({e['machine']}, {e['date']}, commit {e['commit']})" for e in entries)
    return ["", "Commands:", ""] + list(seen)


def curve_table(entries):
    """Validation losses through training, at about eight of the steps that were validated."""
    rows = []
    for e in entries:
        curve = sorted((int(step), loss) for step, loss in e["result"]["validation"].items())
        stride = -(-len(curve) // 8)
        points = curve[::-1][::stride][::-1]
        rows.append([f"{e['result']['size']} {e['result']['precision']}, {e['machine']}",
                     ", ".join(f"{step}: {loss:.3f}" for step, loss in points)])
    return ["", "Validation loss through training (step: nats a byte):", ""] + table(["run", "curve"], rows)


def train_table(entries):
    rows = []
    for e in entries:
        r = e["result"]
        steps, which, bound, peer = REFERENCE.get(r["size"], (1 << 62, "best", None, "-"))
        applies = r["steps"] >= steps
        rows.append([r["size"], e["machine"], r["precision"], r["steps"], f"{r['best']:.4f} (step {r['best_step']})",
                     f"{r['final']:.4f}", f"{which} <= {bound}" if applies else "-", peer if applies else "-",
                     f"{r['train_seconds']} s", f"{r['peak_mib']} MiB" if r["peak_mib"] is not None else "-"])
    return table(["size", "machine", "precision", "steps", "best validation", "at the end", "bound", "PyTorch",
                  "training", "peak memory"], rows) + curve_table(entries) + commands(entries)


def verify_table(entries):
    """The worst error of each quantity over all runs of a machine and precision, over its tolerance."""
    rows = []
    for e in entries:
        groups = {}
        for run in e["result"]["runs"]:
            groups.setdefault((run["device"], run["precision"]), []).append(run)
        for (device, precision), runs in groups.items():
            cells = []
            for name in QUANTITIES:
                worst = max(run["errors"][name] for run in runs)
                cells.append(f"{worst:.1e} / {runs[0]['tolerances'][name]:.1e}")
            good = sum(bool(run["passed"]) for run in runs)
            rows.append([e["machine"], device, precision, *cells, f"{good} of {len(runs)}"])
    return table(["machine", "device", "precision", "logits", "loss", "gradients", "ten losses", "gradient norms",
                  "final weights", "runs passed"], rows) + commands(entries)


def bench_table(entries):
    rows = []
    for e in sorted(entries, key=lambda e: (e["machine"], e["result"]["size"], e["result"]["dtype"])):
        r = e["result"]
        how = " ".join(filter(None, [r["dtype"], r["attn"], r.get("kernels", ""),
                                     "" if r["compile"] == "none" else "compile=" + r["compile"]]))
        for phase in ("fwd", "fwdbwd", "step"):
            p = r.get(phase)
            if p is None:
                continue
            head = [e["machine"], r["peer"], f"{r['size']} batch {r['batch']} ctx {r['ctx']}", how, phase]
            if p == "OOM":
                rows.append(head + ["out of memory", "-", "-", "-"])
            else:
                rows.append(head + [f"{p['ms']:.3f}", p["peak_mib"], p["tok_s"], p.get("tflops", "-")])
    return table(["machine", "program", "model", "mode", "phase", "median ms", "peak MiB", "tokens/s", "TFLOP/s"],
                 rows) + commands(entries)


def sgemm_table(entries):
    rows = [[e["machine"], e["result"]["size"], *(e["result"]["sgemm"][k] for k in ("step_gflops", "sgemm_gflops", "ratio"))]
            for e in entries]
    return table(["machine", "model", "matmul GFLOP/s of the step", "SGEMM GFLOP/s at its shapes", "ratio (at least 0.5)"],
                 rows) + commands(entries)


def shape_of(command):
    value = lambda flag: re.search(rf"--{flag} (\S+)", command)[1]
    return f"{value('size')}, batch {value('batch')}, ctx {value('ctx')}, vocab {value('vocab')}, {value('precision')}"


def compare_table(entries):
    rows = []
    for e in entries:
        for row in e["result"].get("steps", []):
            torch, quern = row["torch"], row["quern"]
            show = lambda value, digits=2: "out of memory" if value is None else f"{value:.{digits}f}"
            mode = re.search(r"--compile (\S+)", torch["command"])[1]
            rows.append([e["machine"], shape_of(quern["command"]) + (", naive" if "naive" in quern["command"] else ""),
                         f"{show(torch['ms'])} (compile={mode})", show(quern["ms"]),
                         f"{row['ratio']:.2f}" if row["ratio"] else "-",
                         f"{quern['launched_ms']:.2f}" if "launched_ms" in quern else "-",
                         f"{quern['tflops']:.0f}" if quern.get("tflops") else "-",
                         f"{quern.get('peak_mib', '-')} / {torch.get('peak_mib', '-')}"])
    return table(["machine", "step", "PyTorch ms", "Quern ms", "times as fast", "Quern without graph, ms", "TFLOP/s",
                  "peak MiB, Quern / PyTorch"], rows) + commands(entries)


def attention_table(entries):
    rows = []
    for e in entries:
        for row in e["result"].get("attention", []):
            cells = [" / ".join("-" if v is None else f"{v:.0f}" for v in row.get(name, [None]))
                     for name in ("quern", "flash2", "cudnn")]
            rows.append([e["machine"], row["D"], "yes" if row["causal"] else "no", row["T"], *cells])
    return table(["machine", "D", "causal", "T", "Quern", "FlashAttention-2", "cuDNN"], rows) + commands(entries)


TABLES = {"train": train_table, "verify": verify_table, "bench": bench_table, "sgemm": sgemm_table, "compare": compare_table,
          "attention": attention_table}


def load(folder):
    entries = {kind: [] for kind in TABLES}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as file:
            entry = json.load(file)
        if entry["kind"] == "bench" and "sgemm" in entry["result"]:
            entries["sgemm"].append(entry)
        if entry["kind"] == "compare" and "attention" in entry["result"]:
            entries["attention"].append(entry)
        entries[entry["kind"]].append(entry)
    return entries


def render(text, folder):
    entries = load(folder)

    def block(match):
        what, name = match[1], match[2]
        if what == "results":
            if name not in TABLES:
                sys.exit(f"readme_tables.py: unknown marker results:{name}, expected one of {', '.join(TABLES)}")
            body = "\n".join(TABLES[name](entries[name])) if entries[name] else "No result is recorded yet."
        else:
            path = os.path.join(folder, name + ".txt")
            body = "No output is recorded yet."
            if os.path.exists(path):
                with open(path) as file:
                    body = "```\n" + file.read().rstrip("\n") + "\n```"
        return f"<!-- {what}:{name} -->\n{body}\n<!-- /{what}:{name} -->"

    return re.sub(r"<!-- (results|output):(\S+) -->\n.*?<!-- /\1:\2 -->", block, text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--readme", default=os.path.join(ROOT, "README.md"))
    parser.add_argument("--results", default=os.path.join(ROOT, "benchmarks/results"))
    args = parser.parse_args()
    with open(args.readme) as file:
        old = file.read()
    new = render(old, args.results)
    if not args.check:
        with open(args.readme, "w") as file:
            file.write(new)
        return 0
    if new != old:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "README.md", "made anew"))
        print("README.md is out of date: run scripts/readme_tables.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
