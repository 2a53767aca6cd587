#!/usr/bin/env python3
"""Makes the result tables and sample outputs of README.md and benchmarks/RESULTS.md.

Usage: scripts/readme_tables.py [--check] [--page FILE]... [--results FOLDER]

The text between <!-- results:KIND --> and <!-- /results:KIND --> becomes the table of the result files of that
kind: train, verify, bench, sgemm, decode; compare, attention, attention-course, attention-memory, kernels (the
parts of compare_torch's record); compare_ranks; compare_collectives; summary (the README's rows). The text between
<!-- output:NAME --> and <!-- /output:NAME --> becomes that of results/NAME.txt, whose lines of commands begin with "$ ".
With --check the script writes nothing, and the exit status is 1 when a page would change.
"""
import argparse, difflib, glob, json, os, re, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Bounds on validation loss, and where they come from: size -> (fewest steps, final or best loss, bound, peer).
REFERENCE = {"shakespeare-cpu": (2000, "final", 1.72, "1.688, 1.700 (PyTorch)"),
             "shakespeare-gpu": (2500, "best", 1.4697, "1.4697 (nanoGPT, published)")}
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
        rows.append([f"{e['result']['size']} {e['result']['precision']}, seed {e['result'].get('seed', 1)}, {e['machine']}",
                     ", ".join(f"{step}: {loss:.3f}" for step, loss in points)])
    return ["", "Validation loss through training (step: nats a byte):", ""] + table(["run", "curve"], rows)


def train_table(entries):
    entries = sorted(entries, key=lambda e: (e["result"]["size"], e["result"]["precision"], e["result"].get("seed", 1)))
    rows = []
    for e in entries:
        r = e["result"]
        steps, which, bound, peer = REFERENCE.get(r["size"], (1 << 62, "best", None, "-"))
        applies = r["steps"] >= steps
        rows.append([r["size"], e["machine"], r["precision"], r.get("seed", 1), r["steps"],
                     f"{r['best']:.4f} (step {r['best_step']})",
                     f"{r['final']:.4f}", f"{which} <= {bound}" if applies else "-", peer if applies else "-",
                     f"{r['train_seconds']} s", f"{r['peak_mib']} MiB" if r["peak_mib"] is not None else "-"])
    return table(["size", "machine", "precision", "seed", "steps", "best validation", "at the end", "bound", "peer",
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
            head = [e["machine"], e["commit"], r["peer"], f"{r['size']} batch {r['batch']} ctx {r['ctx']}", how, phase]
            if p == "OOM":
                rows.append(head + ["out of memory", "-", "-", "-"])
            else:
                rows.append(head + [f"{p['ms']:.3f}", p["peak_mib"], p["tok_s"], p.get("tflops", "-")])
    return table(["machine", "commit", "program", "model", "mode", "phase", "median ms", "peak MiB", "tokens/s", "TFLOP/s"],
                 rows) + commands(entries)


def sgemm_table(entries):
    rows = [[e["machine"], e["result"]["size"], *(e["result"]["sgemm"][k] for k in ("step_gflops", "sgemm_gflops", "ratio"))]
            for e in entries]
    return table(["machine", "model", "matmul GFLOP/s of the step", "SGEMM GFLOP/s at its shapes", "ratio (at least 0.5)"],
                 rows) + commands(entries)


def decode_table(entries):
    """A row a case: Quern's default way beside the fastest of PyTorch's recorded modes."""
    cases = {}
    for e in sorted(entries, key=lambda e: e["date"]):  # the later record of a case counts
        for r in e["result"]["rows"]:
            case = (e["machine"], *(r[key] for key in ("size", "vocab_size", "batch", "prompt", "precision")))
            programs = cases.setdefault(case, {"quern": {}, "torch": {}})
            programs[r["peer"].split("-")[0]][r["way"]] = r
    rows = []
    for case, programs in sorted(cases.items()):
        quern = programs["quern"].get("automatic", {})
        torch = min(programs["torch"].values(), key=lambda r: r.get("ms", float("inf")), default={})
        ms = lambda r: "out of memory" if "error" in r else number(r.get("ms"), 3)
        rate = f"{quern['tokens_per_second']:.0f}" if "tokens_per_second" in quern else "-"
        ratio = torch["ms"] / quern["ms"] if "ms" in torch and "ms" in quern else None
        rows.append([*case, ms(quern), rate, number(quern.get("times_read")),
                     ms(torch) + (f" ({torch['way']})" if "ms" in torch else ""), number(ratio)])
    return table(["machine", "size", "vocabulary", "batch", "prompt", "precision", "Quern ms", "tokens/s",
                  "times the read of the weights", "PyTorch ms", "times as fast"], rows) + commands(entries)


def cases_of(entries, *names):
    """(machine, name, case) of the cases of compare_torch that are among the names, or of all steps on GPUs."""
    return [(e["machine"], name, case) for e in entries for name, case in e["result"]["cases"].items()
            if name in names or (not names and "quern" in case and "threads" not in case)]


def case_commands(cases):
    """One command for all that were run at one commit on one day."""
    groups = {}
    for machine, name, case in cases:
        groups.setdefault((machine, case["date"], case["commit"], case["rounds"]), []).append(name)
    return commands([{"command": f"benchmarks/compare_torch --rounds {rounds} {' '.join(names)}", "machine": machine,
                      "date": date, "commit": commit} for (machine, date, commit, rounds), names in groups.items()])


def shape_of(command):
    value = lambda flag: (re.search(rf"--{flag} (\S+)", command) or [None, None])[1]
    vocab = f", vocab {value('vocab')}" if value("vocab") else ""
    size = value("size") or f"d_model {value('d_model')}, {value('layers')} layers"  # without a name
    return f"{size}, batch {value('batch')}, ctx {value('ctx')}{vocab}, {value('precision')}"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def options_of(command):
    """What a row's label says behind the shape."""
    labels = {"--kernels naive": ", naive", "--moments bf16": ", Quern with BF16 moments"}
    return "".join(label for flags, label in labels.items() if flags in command)


def compare_table(entries):
    rows = []
    for machine, _, case in cases_of(entries):
        torch, quern, reference = case.get("torch"), case["quern"], case.get("reference")
        ms = lambda program: "out of memory" if program["ms"] is None else number(program["ms"])
        mode = re.search(r"--compile (\S+)", torch["command"])[1] if torch else None
        torch_ms = f"{ms(torch)} (compile={mode})" if torch else "-"
        peaks = f"{quern.get('peak_mib', '-')} / {torch.get('peak_mib', '-') if torch else '-'}"
        other = "-"
        if reference:
            other = f"{reference['program']}: {reference['tflops']:.0f} TFLOP/s, {reference['ms']} ms"
            other += f" ({reference['ratio']:.2f} times in TFLOP/s)" if reference["ratio"] else ""
        rows.append([machine, shape_of(quern["command"]) + options_of(quern["command"]), torch_ms, ms(quern),
                     number(case["ratio"]), number(quern.get("launched_ms")), number(quern.get("tflops"), 0), peaks, other])
    return table(["machine", "step", "PyTorch ms", "Quern ms", "times as fast", "Quern without graph, ms", "TFLOP/s",
                  "peak MiB, Quern / PyTorch", "published, of another run"], rows) + case_commands(cases_of(entries))


def compare_cpu_table(entries):
    cases = [(e["machine"], name, case) for e in entries for name, case in e["result"]["cases"].items() if "threads" in case]
    rows = [[machine, shape_of(case["quern"]["command"]), str(case["threads"]), number(case["eager_ms"]),
             number(case["block_ms"]), number(case["quern"]["ms"]), number(case["ratio"])] for machine, _, case in cases]
    ran = [(machine, name.rsplit("-", 1)[0], {**case, "rounds": f"{case['rounds']} --threads {case['threads']}"})
           for machine, name, case in cases]
    return table(["machine", "step", "threads", "PyTorch ms, eager", "compiled by block", "Quern ms", "times as fast"],
                 rows) + case_commands(ran)


def ranks_table(entries):
    """compare_ranks: each strategy beside one GPU of the same run."""
    rows, ran = [], {}
    for e in entries:
        cases = {tuple(name.rsplit("-", 2)): case for name, case in e["result"]["cases"].items()}
        models = list(dict.fromkeys(model for model, _, _ in cases))
        ordered = sorted(cases.items(), key=lambda item: (models.index(item[0][0]), int(item[0][1])))
        for (model, gpus, strategy), case in ordered:  # "torch": PyTorch's DDP
            share = f"{100 * case['share']:.1f} %" if case.get("share") else "-"
            rows.append([e["machine"], model, gpus, case.get("links", "-"), strategy, case.get("error") or number(case["ms"]),
                         number(case.get("one_gpu_ms")), share, case.get("tokens_per_s", "-"), case.get("memory_mib", "-")])
            group = ran.setdefault((e["machine"], gpus, case["commit"], case["date"]), {"models": {}, "strategies": {}})
            group["models"][model] = group["strategies"][strategy] = None
    made = []
    for (machine, gpus, commit, date), group in ran.items():
        own = ",".join(strategy for strategy in group["strategies"] if strategy != "torch")
        peer = " --torch" if "torch" in group["strategies"] else ""
        made.append({"command": f"benchmarks/compare_ranks --gpus {gpus} --strategies {own}{peer} {' '.join(group['models'])}",
                     "machine": machine, "date": date, "commit": commit})
    return table(["machine", "case", "GPUs", "links", "strategy", "ms a step", "one GPU, ms", "share of its throughput", "tokens/s",
                  "MiB a GPU"], rows) + commands(made)


def collectives_table(entries):
    """compare_collectives: Quern's figure / PyTorch's."""
    columns = [(1 << 10, "us"), (1 << 16, "us"), (1 << 20, "us"), (1 << 24, "gb_s"), (1 << 28, "gb_s"), (1 << 30, "gb_s")]
    rows = []
    for e in entries:
        # Before there were places, all were in place but exchange.
        case = lambda row: (row["collective"], row.get("place", "out" if row["collective"] == "exchange" else "in"))
        found = {(case(row), row["bytes"]): row for row in e["result"]["rows"]}
        for name in dict.fromkeys(case(row) for row in e["result"]["rows"]):
            cells = [found.get((name, size), {}) for size, _ in columns]
            rows.append([e["machine"], e["result"]["gpus"], *name] +
                        [f"{number(cell.get(f'quern_{unit}'), 1)} / {number(cell.get(f'torch_{unit}'), 1)}"
                         for cell, (_, unit) in zip(cells, columns)])
    header = ["machine", "GPUs", "collective", "place", "1 KiB, us", "64 KiB, us", "1 MiB, us", "16 MiB, GB/s", "256 MiB, GB/s", "1 GiB, GB/s"]
    return table(header, rows) + commands(entries)


def both_ways(row, name):
    """Forward / backward in TFLOP/s."""
    return " / ".join(number(value, 0) for value in row.get(name) or [None])


def attention_table(entries):
    cases = cases_of(entries, "attention")
    rows = [[machine, row["D"], "yes" if row["causal"] else "no", row["T"],
             *(both_ways(row, name) for name in ("quern", "any_order", "portable", "flash2", "cudnn"))]
            for machine, _, case in cases for row in case["rows"]]
    return table(["machine", "D", "causal", "T", "Quern", "not deterministic", "portable kernel", "FlashAttention-2", "cuDNN"],
                 rows) + case_commands(cases)


def course_table(entries):
    cases = cases_of(entries, "attention-course")
    rows = [[machine, row["dtype"], row["D"], row["T"], both_ways(row, "quern"),
             both_ways(row, "flash2" if row["dtype"] == "bf16" else "efficient"),
             "FlashAttention-2" if row["dtype"] == "bf16" else "memory-efficient"]
            for machine, _, case in cases for row in case["rows"]]
    return table(["machine", "dtype", "D", "T", "Quern", "PyTorch", "PyTorch's kernel"], rows) + case_commands(cases)


def memory_table(entries):
    """One row a length: for each variant the memory kept for the backward and the time."""
    cases = cases_of(entries, "attention-memory")
    variants = ("flash", "naive", "naive_graph")
    rows = []
    def cell(line):
        if "error" in line:
            return "out of memory"
        return f"{line['saved_mib']:.1f} MiB, {line['peak_mib']:.0f} MiB, {line['fwd_ms']:.2f} + {line['bwd_ms']:.2f} ms"
    for machine, _, case in cases:
        found = {(row["dtype"], row["T"], row["backend"]): row for row in case["rows"]}
        for dtype, T in dict.fromkeys((dtype, T) for dtype, T, _ in found):
            lines = [found.get((dtype, T, variant)) for variant in variants]
            rows.append([machine, dtype, T] + [cell(line) if line else "-" for line in lines])
    return table(["machine", "dtype", "T", *variants], rows) + case_commands(cases)


def kernels_table(entries):
    cases = cases_of(entries, "kernels")
    percent = lambda figures: f"{100 * figures['share']:.0f} %" if figures else "-"
    rows = []
    for machine, _, case in cases:
        for row in case["rows"]:
            fused, naive = row["quern"].get("fused"), row["quern"].get("naive")
            best = min(row["torch"].items(), key=lambda item: item[1]["ms"], default=(None, None))
            torch = f"{best[1]['ms']:.3f} ms, {percent(best[1])} ({best[0]})" if best[0] else "-"
            rows.append([machine, row["kernel"], row["dtype"], " x ".join(map(str, row["shape"])),
                         number(fused["ms"], 3) if fused else "out of memory", percent(fused),
                         f"{naive['ms']:.3f} ms, {percent(naive)}" if naive else "-", torch, number(row["ratio"])])
    return table(["machine", "kernel", "dtype", "shape", "Quern ms", "of the copy", "Quern, naive", "PyTorch's fastest",
                  "times as fast"], rows) + case_commands(cases)


def summary_table(entries):
    """The README's rows, from the records of every kind."""
    def row(what, entry, quern, peer, ratio):
        return [what, quern, peer, number(ratio), f"{entry['machine']}, {entry['date']}, {entry['commit'][:7]}"]
    rows = []
    for e in sorted((e for e in entries if e["kind"] == "compare"), key=lambda e: "cores" in e["machine"]):  # GPUs first
        cases = e["result"]["cases"]
        dated = lambda name: {"machine": e["machine"], **cases[name]}
        for name in ("small", "2.7B-wide", "2.7B-fp8"):
            if name in cases:
                torch, quern = cases[name]["torch"], cases[name]["quern"]
                rows.append(row("step of " + shape_of(quern["command"]), dated(name), f"{quern['ms']:.2f} ms",
                                f"{torch['ms']:.2f} ms (PyTorch, compiled)", cases[name]["ratio"]))
        for r in cases.get("attention", {"rows": []})["rows"]:
            if (r["D"], r["T"], r["causal"]) == (128, 4096, True):
                rows.append(row("attention, D 128, T 4096, causal, bf16; forward / backward", dated("attention"),
                                both_ways(r, "quern") + " TFLOP/s", both_ways(r, "cudnn") + " TFLOP/s (cuDNN)",
                                r["quern"][0] / r["cudnn"][0]))
                rows[-1][3] += f" / {r['quern'][1] / r['cudnn'][1]:.2f}"
        for r in cases.get("kernels", {"rows": []})["rows"]:
            if r["kernel"] == "cross_entropy_fwd_bwd":
                name, best = min(r["torch"].items(), key=lambda item: item[1]["ms"])
                rows.append(row("cross-entropy and its gradient, " + " x ".join(map(str, r["shape"])) + ", bf16",
                                dated("kernels"), f"{r['quern']['fused']['ms']:.2f} ms",
                                f"{best['ms']:.2f} ms (PyTorch, {name})", r["ratio"]))
        if "cpu-wide-16" in cases:
            case = cases["cpu-wide-16"]
            mode = "eager" if case["eager_ms"] < case["block_ms"] else "compiled"
            rows.append(row("step of " + shape_of(case["quern"]["command"]) + ", 16 threads", dated("cpu-wide-16"),
                            f"{case['quern']['ms']:.0f} ms", f"{case['torch']['ms']:.0f} ms (PyTorch, {mode})", case["ratio"]))
    for e in (e for e in entries if e["kind"] == "compare_ranks"):
        quern, torch = (e["result"]["cases"].get(name) for name in ("8B-long-host-2-fsdp", "8B-long-2-torch"))
        if quern and torch:
            rows.append(row("step of 8B, ctx 32768, bf16, two GPUs, `offload_activations`", {"machine": e["machine"], **quern},
                            f"{quern['ms']:.0f} ms", f"{torch['ms']:.0f} ms (PyTorch, FSDP2, recomputed blocks)", torch["ms"] / quern["ms"]))
    decoded = {(e["result"]["rows"][0]["peer"].split("-")[0], e["result"]["rows"][0]["size"]): e
               for e in entries if e["kind"] == "decode"}
    if ("quern", "2.7B") in decoded and ("torch", "2.7B") in decoded:
        quern, torch = (decoded[peer, "2.7B"]["result"]["rows"][0] for peer in ("quern", "torch"))
        rows.append(row("one generated token, 2.7B, batch 1, bf16", decoded["quern", "2.7B"], f"{quern['ms']:.2f} ms",
                        f"{torch['ms']:.2f} ms (PyTorch, {torch['way']})", torch["ms"] / quern["ms"]))
    seeds = [e for e in entries if e["kind"] == "train" and
             (e["result"]["size"], e["result"]["precision"]) == ("shakespeare-gpu", "bf16")]
    if seeds:
        best = [e["result"]["best"] for e in seeds]
        of = f", mean of {len(best)} seeds" if len(best) > 1 else ""
        rows.append(row(f"tiny Shakespeare, {seeds[0]['result']['steps']} steps: best validation, nats a byte{of}", seeds[0],
                        f"{sum(best) / len(best):.4f}", REFERENCE["shakespeare-gpu"][3], None))
    return table(["what", "Quern", "compared with", "times as fast", "where, when, commit"], rows)


TABLES = {"train": train_table, "verify": verify_table, "bench": bench_table, "sgemm": sgemm_table, "decode": decode_table,
          "compare": compare_table, "compare-cpu": compare_cpu_table, "compare_ranks": ranks_table, "compare_collectives": collectives_table, "attention": attention_table,
          "attention-course": course_table, "attention-memory": memory_table, "kernels": kernels_table, "summary": summary_table}


def load(folder):
    entries = {kind: [] for kind in TABLES}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as file:
            entry = json.load(file)
        entries["summary"].append(entry)
        if entry["kind"] == "bench" and "sgemm" in entry["result"]:
            entries["sgemm"].append(entry)
        if entry["kind"] == "compare":
            for case in TABLES.keys() & entry["result"]["cases"].keys():
                entries[case].append(entry)
            cases = entry["result"]["cases"].values()
            if any("threads" in case for case in cases):
                entries["compare-cpu"].append(entry)
            if not any("quern" in case and "threads" not in case for case in cases):
                continue
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
    parser.add_argument("--page", action="append", help="README.md and benchmarks/RESULTS.md unless given")
    parser.add_argument("--results", default=os.path.join(ROOT, "benchmarks/results"))
    args = parser.parse_args()
    status = 0
    for page in args.page or [os.path.join(ROOT, name) for name in ("README.md", "benchmarks/RESULTS.md")]:
        with open(page) as file:
            old = file.read()
        new = render(old, args.results)
        if not args.check:
            with open(page, "w") as file:
                file.write(new)
        elif new != old:
            name = os.path.relpath(page, ROOT)
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "regenerated"))
            print(f"{name} is out of date: run scripts/readme_tables.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
