#!/usr/bin/env python3
"""The whole circle with the real library, for every family that Quern supports: transformers makes a random model and saves
it, Quern imports it, trains 20 steps and exports it, and transformers loads the export and agrees on the loss, the logits,
the gradients and the greedy tokens.

Usage: transformers_roundtrip.py QUERN [--family NAME ...] [--results DIR]     (pip install torch transformers safetensors)

For each family, all on the CPU in float32:
  untrained   import, then export: every tensor byte for byte and of its dtype, config.json and generation_config.json as
              they were, and transformers' logits the same bits
  loss        of `quern eval` on held-out tokens against transformers' with the trained export: 2e-5 relative
  verify      `quern verify` of the trained export against logits, loss, gradients and ten AdamW steps of transformers'
              with it: the tolerances of src/bench/verify.cpp (logits 2e-5)
  greedy      `quern generate --temperature 0` against transformers' generate, before and after training: the same ids
Writes DIR/NAME.txt (default: results/ beside this file): versions, commands, numbers. Exits 1 when a check fails.
"""
import argparse, json, os, re, shlex, subprocess, sys, tempfile
from pathlib import Path
import numpy, safetensors, torch, transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fixtures" / "golden"))
from make_golden import expectations, make_model

V, CONTEXT = 512, 64
BASE = dict(vocab_size=V, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
# dtype and shard: how the folder is saved. old: config.json as transformers 4 writes it. rope_theta
# of qwen2.5 is small because of its biases: see make_golden.py.
FAMILIES = {
    "llama2": dict(num_key_value_heads=4, shard="200KB", dtype="float16"),
    "llama3": dict(rope_theta=500000.0, rope=LLAMA3, shard="100KB", dtype="bfloat16", old=True),
    "smollm2": dict(hidden_size=96, num_attention_heads=6, tie_word_embeddings=True, rope_theta=100000.0),
    "tinyllama": dict(dtype="bfloat16", old=True),
    "mistral": dict(model_type="mistral", head_dim=32, rope_theta=1000000.0, old=True),
    "qwen2.5": dict(model_type="qwen2", tie_word_embeddings=True, rope_theta=50.0, rms_norm_eps=1e-6, dtype="bfloat16"),
    "qwen3": dict(model_type="qwen3", head_dim=24, rope_theta=1000000.0, rms_norm_eps=1e-6),
    "linear_rope": dict(rope=dict(rope_type="linear", factor=2.0), old=True),
}


class Log:
    """Copies printed lines to the family's file."""

    def __init__(self, places):
        self.lines, self.failed, self.places = [], [], places

    def __call__(self, text):
        for path, name in self.places: text = text.replace(str(path), name)
        self.lines.append(text); print(text, flush=True)

    def check(self, name, passed, text):
        self(f"{'ok    ' if passed else 'FAILED'}  {name:<11} {text}")
        if not passed: self.failed.append(name)


def run(log, *command):
    command = [str(word) for word in command]
    log("$ " + shlex.join(command))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0: raise RuntimeError(f"exit {done.returncode}: {done.stdout[-3000:]}{done.stderr}")
    return done.stdout


def tensors_of(folder):
    """Name -> (dtype, shape, bytes), read without any library."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes(); length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + length]).items():
            if name == "__metadata__": assert entry["format"] == "pt", path; continue
            begin, end = entry["data_offsets"]
            assert name not in tensors, name
            tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
    return tensors


def old_spelling(folder):
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters"); config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype"); config["transformers_version"] = "4.46.0"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_source(folder, settings):
    kv = dict(BASE, **settings); dtype, shard, old = kv.pop("dtype", "float32"), kv.pop("shard", "5GB"), kv.pop("old", False)
    model = make_model(kv, 7).to(getattr(torch, dtype)); model.save_pretrained(folder, max_shard_size=shard)
    if old: old_spelling(folder)


def make_tokens(path, count, seed):
    """Tokens in nanoGPT's form. Each is mostly a function of the previous one, which a few training steps learn."""
    random = numpy.random.default_rng(seed); ids = [1]
    for _ in range(count - 1): ids.append(int((3 * ids[-1] + 1) % 31 if random.random() < 0.95 else random.integers(V)))
    numpy.array(ids, dtype="<u2").tofile(path)
    return torch.tensor(ids)


def load(folder, dtype=torch.float32):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {key: value for key, value in info.items() if value and key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not bad, bad
    return model.eval()


def check_untrained(log, quern, source, run_folder, out):
    run(log, quern, "import", source, "--out", run_folder)
    run(log, quern, "export", run_folder, out, "--shard-size", "1")
    a, b = tensors_of(source), tensors_of(out)
    files = all((source / name).read_bytes() == (out / name).read_bytes() for name in ("config.json", "generation_config.json"))
    ids = torch.arange(2 * CONTEXT).reshape(2, CONTEXT) % V
    with torch.no_grad(): x, y = (load(folder)(input_ids=ids).logits for folder in (source, out))
    kinds = sorted({dtype for dtype, _, _ in a.values()})
    log.check("untrained", a == b and files and torch.equal(x, y),
              f"{len(a)} tensors of {kinds}, {len(list(source.glob('*.safetensors')))} file(s): bytes equal {a == b}, "
              f"configurations equal {files}, logits equal {torch.equal(x, y)}")


def check_loss(log, quern, trained, tokens, path, model):
    found = json.loads(run(log, quern, "eval", trained, path, "--latest", "--device", "cpu", "--precision", "fp32", "--json"))
    windows = (len(tokens) - 1) // CONTEXT
    x = tokens[:windows * CONTEXT].reshape(windows, CONTEXT); y = tokens[1:windows * CONTEXT + 1].reshape(windows, CONTEXT)
    with torch.no_grad(): expected = torch.nn.functional.cross_entropy(model(input_ids=x).logits.double().flatten(0, 1), y.flatten()).item()
    error = abs(found["loss"] - expected) / expected
    log.check("loss", error <= 2e-5 and found["windows"] == windows,
              f"{found['loss']:.7f} over {found['windows']} windows, transformers {expected:.7f}: relative error {error:.1e}, at most 2e-5")


def check_greedy(log, quern, run_folder, prompt, model):
    count = 40
    out = run(log, quern, "generate", run_folder, "--latest", "--device", "cpu", "--precision", "fp32", "--temperature", "0",
              "--tokens", count, "--prompt_ids", ",".join(map(str, prompt)))
    found = [int(id) for id in out.split()]
    made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0)
    expected = made[0, len(prompt):].tolist()
    log.check("greedy", found == expected, f"{count} tokens: {' '.join(map(str, found))}"
              + ("" if found == expected else f"; transformers {' '.join(map(str, expected))}"))


def check_verify(log, quern, out, tokens, model):
    x = tokens[:2 * CONTEXT].reshape(2, CONTEXT).clone(); y = tokens[1:2 * CONTEXT + 1].reshape(2, CONTEXT).clone()
    save_file(expectations(model.train(), x, y), out / "expected.safetensors")
    text = run(log, quern, "verify", out, "--device", "cpu", "--precision", "fp32")
    for line in text.strip().splitlines(): log(("        " + line).rstrip())
    log.check("verify", "1 of 1 runs within the tolerances" in text, "logits, loss, gradients, AdamW")


def check_dtype(log, quern, trained, out, settings):
    run(log, quern, "export", trained, out, "--latest", "--dtype", "source")
    dtype = settings.get("dtype", "float32"); short = dict(float32="F32", bfloat16="BF16", float16="F16")[dtype]
    kinds = {kind for kind, _, _ in tensors_of(out).values()}; model = load(out, "auto")
    log.check("dtype", kinds == {short} and model.dtype == getattr(torch, dtype), f"--dtype source: {sorted(kinds)}, transformers loads {model.dtype}")


def circle(name, settings, quern, results):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder); log = Log([(folder, "W"), (quern, "quern")])
        log(f"{name}: {json.dumps(settings)}")
        log(f"transformers {transformers.__version__}, torch {torch.__version__}, safetensors {safetensors.__version__}, "
            f"{subprocess.run([quern, '--version'], capture_output=True, text=True).stdout.split(' (')[0]}, CPU")
        source, trained, out = folder / "source", folder / "trained", folder / "out"
        make_source(source, settings)
        make_tokens(folder / "train.bin", 20000, 1); held_out = make_tokens(folder / "held_out.bin", 2000, 2)
        check_untrained(log, quern, source, folder / "imported", folder / "untrained")
        text = run(log, quern, "train", "--from", folder / "imported", "--train", folder / "train.bin", "--validation", folder / "held_out.bin",
                   "--out", trained, "--steps", 20, "--batch", 8, "--ctx", CONTEXT, "--lr", "1e-2", "--warmup", 2, "--log_every", 1,
                   "--eval_every", 0, "--sample_every", 0, "--device", "cpu", "--precision", "fp32")
        losses = re.findall(r"^step +(\d+)/20 +loss ([\d.]+)", text, re.M); first, last = float(losses[0][1]), float(losses[-1][1])
        log.check("training", len(losses) == 20 and last < first - 0.3, f"loss {first} at step 1, {last} at step 20")
        run(log, quern, "export", trained, out, "--latest")
        check_greedy(log, quern, folder / "imported", held_out[:12].tolist(), load(source))
        model = load(out)
        check_loss(log, quern, trained, held_out, folder / "held_out.bin", model)
        check_greedy(log, quern, trained, held_out[:12].tolist(), model)
        check_dtype(log, quern, trained, folder / "as_source", settings)
        check_verify(log, quern, out, held_out, model)
        log(f"{name}: " + (f"FAILED: {', '.join(log.failed)}" if log.failed else "every check passed"))
        (results / f"{name}.txt").write_text("\n".join(log.lines) + "\n")
        return not log.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quern", help="the program"); parser.add_argument("--family", action="append", choices=list(FAMILIES))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args(); args.results.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error(); transformers.utils.logging.disable_progress_bar()
    passed = [circle(name, FAMILIES[name], os.path.abspath(args.quern), args.results) for name in args.family or FAMILIES]
    print(f"{sum(passed)} of {len(passed)} families passed")
    return 0 if all(passed) else 1


if __name__ == "__main__": sys.exit(main())
