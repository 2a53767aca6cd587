#!/usr/bin/env python3
"""Turns the output of Quern's programs into result files for benchmarks/results.

Usage: scripts/record_result.py --machine TEXT [--commit HASH] [--folder FOLDER] [LOG ...]

A log (standard input without one) holds the output of one or more commands, each after a line
"== NAME: COMMAND", as scripts/gpu_check prints it, or "$ COMMAND". Output of `quern train`,
`quern verify`, `quern bench step`, `quern bench decode --format json` and the lines that
benchmarks/peers/torch_lm.py and torch_decode.py print are understood; other parts are passed over.
Prints the files written; exits 1 when there is none.
"""
import argparse, datetime, fileinput, json, os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUANTITIES = [("logits", "logits"), ("losses while training", "losses"), ("loss", "loss"),
              ("gradient of ", "gradients"), ("gradient norms", "grad_norms"), ("final ", "weights")]


def sections(lines):
    """[(command, lines)]"""
    found = []
    for line in lines:
        heading = re.match(r"== [^:]*: (.+ .+)$|\$ (.+)$", line)
        if heading:
            found.append((heading[1] or heading[2], []))
        elif found:
            found[-1][1].append(line)
    return found


def seconds_of(text):  # "1m05s" -> 65
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([hms])", text))


def parse_train(lines):
    text = "\n".join(lines)
    with open(os.path.join(ROOT, "docs/configuration.md")) as page:
        defaults = page.read()  # a run prints the keys that differ from them
    curve = {int(s): float(v) for s, v in re.findall(r"^step +(\d+)/\d+ +validation loss ([\d.]+)", text, re.M)}
    done = re.search(r"^done: +(\d+) steps, (\S+) of training", text, re.M)
    if not curve or not done:
        return None
    setting = lambda key: (re.search(rf'[ \n]{key} ?= ?"?([^",\n]*)"?', text) or
                           re.search(rf'^\| `{key}` \| `"?([^"`]*)"?` ', defaults, re.M))[1]
    memory = re.search(r"^done: .* (\d+) MiB of memory", text, re.M)
    best = min(curve, key=curve.get)
    return {"size": setting("size"), "precision": setting("precision"), "attention": setting("attention"),
            "kernels": setting("kernels"), "seed": int(setting("seed")), "steps": int(done[1]), "validation": curve,
            "best": curve[best], "best_step": best, "final": curve[max(curve)], "train_seconds": seconds_of(done[2]),
            "peak_mib": memory and int(memory[1])}


def parse_verify(lines):
    runs = []
    for line in lines:
        subject = re.match(r"(\S+): (cpu|cuda:\d+), (\w+), attention (\w+), kernels (\w+)$", line)
        if subject:
            runs.append(dict(zip(("case", "device", "precision", "attention", "kernels"), subject.groups())))
            runs[-1].update(errors={}, tolerances={}, passed=None)
        row = re.match(r"  (.+?) +([\d.e+-]+|nan|inf) +([\d.e+-]+)(  BEYOND)?$", line)
        if row and runs:
            name = next((n for prefix, n in QUANTITIES if row[1].startswith(prefix)), None)
            if name:  # the rows of a group are sorted, the worst first
                runs[-1]["errors"].setdefault(name, float(row[2]))
                runs[-1]["tolerances"][name] = float(row[3])
        verdict = re.match(r"  (passed|FAILED):", line)
        if verdict and runs:
            runs[-1]["passed"] = verdict[1] == "passed"
    return {"runs": runs} if runs else None


def parse_bench(lines):
    for line in lines:
        if line.startswith('{"peer"'):
            return json.loads(line)
    text = "\n".join(lines)
    line = (r"^(\S+): ([\d.]+) M parameters, vocab (\d+), batch (\d+), ctx (\d+); (\w+), attention (\w+), "
            r"kernels (\w+), on (\S+)")
    head = re.search(line.replace(" ", r"\s+"), text, re.M)  # may be wrapped
    if not head:
        return None
    result = {"peer": "quern", "size": head[1], "params": round(float(head[2]) * 1e6), "vocab": int(head[3]),
              "batch": int(head[4]), "ctx": int(head[5]), "dtype": head[6], "attn": head[7], "kernels": head[8],
              "compile": "graph" if re.search(r"^  launched ", text, re.M) else "none"}
    number = r" +([\d.]+)"
    for name, *v in re.findall(rf"^(fwd|fwdbwd|step){number * 6}$", text, re.M):
        ms, mean, std, mib, tokens, tflops = map(float, v)
        result[name] = {"ms": ms, "mean": mean, "std": std, "peak_mib": round(mib), "tok_s": round(tokens),
                        "tflops": tflops}
    for name in re.findall(r"^(fwd|fwdbwd|step) +out of memory$", text, re.M):
        result[name] = "OOM"
    ratio = re.search(r"matmul of the step: ([\d.]+) GFLOP/s; SGEMM at its shapes: ([\d.]+) GFLOP/s; ratio ([\d.]+)", text)
    if ratio:
        result["sgemm"] = dict(zip(("step_gflops", "sgemm_gflops", "ratio"), map(float, ratio.groups())))
    return result


def parse_decode(lines):
    rows = [json.loads(line) for line in lines if line.startswith('{"peer"')]
    return {"rows": rows} if rows else None


PARSERS = {"train": parse_train, "verify": parse_verify, "bench": parse_bench, "decode": parse_decode}


def kind_of(command):
    if "torch_lm.py" in command:
        return "bench"
    if "torch_decode.py" in command or re.search(r"quern bench decode\b", command):
        return "decode"
    word = re.search(r"quern (train|verify)\b|quern (bench) step\b", command)
    return word and (word[1] or word[2])


def name_parts(kind, machine, result):
    """The parts of a result's file name: a new result with the same parts replaces the old one."""
    if kind != "decode":
        return [kind, machine, result.get("peer", ""), result.get("size", ""),
                result.get("precision", result.get("dtype", "")), result.get("attn", ""), result.get("kernels", ""),
                f"seed {result['seed']}" if result.get("seed", 1) != 1 else ""]
    values = lambda key: " ".join(dict.fromkeys(str(row[key]) for row in result["rows"]))
    return [kind, machine, result["rows"][0]["peer"].split("-")[0], values("size"), values("precision"), values("way"),
            "vocab", values("vocab_size"), "batch", values("batch"), "prompt", values("prompt")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what it ran on, for the tables: 'NVIDIA H200'")
    parser.add_argument("--commit", help="that the programs were built from; without it the checkout's")
    parser.add_argument("--folder", default=os.path.join(ROOT, "benchmarks/results"))
    parser.add_argument("logs", nargs="*")
    args = parser.parse_args()
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    written = 0
    lines = [line.rstrip("\n") for line in fileinput.input(args.logs)]
    for command, body in sections(lines):
        kind = kind_of(command)
        result = PARSERS[kind](body) if kind else None
        if not result:
            continue
        command = re.sub(r"\S*/(quern|torch_(?:lm|decode)\.py)\b", r"\1", command)  # without the builder's folders
        command = re.sub(r" --out \S+", "", command)
        fields = {"kind": kind, "machine": args.machine, "command": command, "commit": args.commit or head.stdout.strip(),
                  "date": datetime.date.today().isoformat(), "result": result}
        parts = filter(None, name_parts(kind, args.machine, result))
        name = re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")
        path = os.path.join(args.folder, name + ".json")
        with open(path, "w") as out:
            json.dump(fields, out, indent=1)
            out.write("\n")
        print(os.path.relpath(path))
        written += 1
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
