#!/usr/bin/env python3
"""PyTorch peer of `quern bench decode`: times generation, a token of every row at a time; prints one JSON line.

The model is that of torch_lm.py (token embedding, pre-norm blocks of RMSNorm, RoPE causal attention and SwiGLU, final
RMSNorm, untied LM head) with random weights and a key/value cache of fixed size, written the way a PyTorch user who wants
speed would write it: one projection for q, k and v, one for both halves of SwiGLU, attention composed of ops that the
compiler fuses, and a step without inputs, outputs or waits: token, position, cache and text are buffers on the device.

  --mode max-autotune     torch.compile of the step so, captured as one CUDA graph by hand: a token is one launch
         reduce-overhead  torch.compile of the step so, with coordinate descent; PyTorch captures its graphs itself
         graph            eager kernels, captured as one CUDA graph
         eager            kernels launched one by one
A mode that fails says so on stderr and the next one runs; `way` in the output names the one that ran. On the CPU the
compiled modes have no graph. Keys: those of `quern bench decode --format json`; setup_s, seconds until the first
measured token. The prompt runs eagerly and is not measured."""
import argparse, json, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

SIZES = {  # d_model, d_ff, layers, heads
    "toy": (256, 768, 4, 8), "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20), "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32),
}
MODES = ["max-autotune", "reduce-overhead", "graph", "eager"]  # each falls back to the next
WARMUP = 8  # tokens


def rope(x, cos, sin):  # x: (B, H, T, D); cos and sin: (T, D / 2)
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, d, f, h, batch, length):
        super().__init__(); self.h = h
        self.n1, self.n2 = nn.RMSNorm(d, 1e-5), nn.RMSNorm(d, 1e-5)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w13, self.w2 = nn.Linear(d, 2 * f, bias=False), nn.Linear(f, d, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, h, length, d // h), persistent=False)

    def forward(self, x, positions, cos, sin, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, positions, rope(k, cos, sin))
        self.values.index_copy_(2, positions, v)
        y = F.scaled_dot_product_attention(rope(q, cos, sin), self.keys, self.values, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, D))
        g, u = self.w13(self.n2(x)).chunk(2, dim=-1)
        return x + self.w2(F.silu(g) * u)


class LM(nn.Module):
    """Generates `batch` rows of at most `length` tokens, all at the same position."""

    def __init__(self, vocab, d, f, n, h, batch, length, temperature):
        super().__init__(); self.temperature = temperature
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, f, h, batch, length) for _ in range(n))
        self.norm, self.head = nn.RMSNorm(d, 1e-5), nn.Linear(d, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1: nn.init.normal_(p, std=0.02)
        inverse = 10000.0 ** (-torch.arange(0, d // h, 2, dtype=torch.float32) / (d // h))
        angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
        self.register_buffer("cos", angles.cos(), False)
        self.register_buffer("sin", angles.sin(), False)
        self.register_buffer("slots", torch.arange(length), False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.long), False)  # of the token that is read next
        self.register_buffer("text", torch.zeros(batch, length, dtype=torch.long), False)

    def forward(self, ids, positions):  # (B, T), (T) -> (B, V), the logits after the last token
        x = self.emb(ids)
        mask = self.slots <= positions[:, None]
        cos, sin = self.cos[positions], self.sin[positions]
        for block in self.blocks: x = block(x, positions, cos, sin, mask)
        return self.head(self.norm(x[:, -1]))

    def draw(self, logits):  # (B, V) -> (B, 1)
        logits = logits.float()
        if self.temperature > 0:  # the largest of logits with Gumbel noise is a draw from their softmax
            logits = logits / self.temperature - torch.log(-torch.log(torch.rand_like(logits)))
        return logits.argmax(-1, keepdim=True)

    def start(self, prompt):  # (B, T)
        positions = torch.arange(prompt.shape[1], device=prompt.device)
        self.text[:, :prompt.shape[1]] = prompt
        self.text[:, prompt.shape[1]] = self.draw(self.forward(prompt, positions))[:, 0]
        self.position.fill_(prompt.shape[1])

    def step(self):
        drawn = self.draw(self.forward(self.text.index_select(1, self.position), self.position))
        self.position.add_(1)
        self.text.index_copy_(1, self.position, drawn)


def captured(step):
    """One CUDA graph of the step. Compilation and tuning run before the capture, on a separate stream."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3): step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): step()
    return graph.replay


def prepared(model, mode, cuda):
    """The model's step in this mode, compiled and captured; throws when PyTorch cannot."""
    if mode == "graph" and not cuda: raise RuntimeError("a CUDA graph needs a GPU")
    if mode == "eager": return model.step
    if mode == "graph": return captured(model.step)
    from torch._inductor import config
    config.coordinate_descent_tuning = True  # without it products of one row are no fused kernels
    own = mode == "reduce-overhead"  # captures by itself
    step = torch.compile(model.step, mode=mode if own else mode + "-no-cudagraphs", fullgraph=True, dynamic=False)
    if cuda and not own: return captured(step)
    for _ in range(3): step()  # compiles, tunes and captures
    return step


def prepared_or_next(model, prompt, mode, cuda):
    """(mode, step) of this mode, or of the first one after it that works."""
    for name in MODES[MODES.index(mode):]:
        try:
            model.start(prompt)
            return name, prepared(model, name, cuda)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler throws many types
            if name == MODES[-1]: raise
            print(f"mode {name} failed, trying the next:", str(error).split("\n")[0][:200], file=sys.stderr)
            torch.compiler.reset()


def milliseconds(step, count, cuda):
    """The time of each step; the host waits only after the last one."""
    if not cuda:
        marks = [time.perf_counter()]
        for _ in range(count): step(); marks.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in zip(marks, marks[1:])]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]: step(); event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(events, events[1:])]


@torch.no_grad()
def run(a):
    """Times one configuration: the figures of its row."""
    start, cuda = time.time(), a.device == "cuda"
    torch.manual_seed(0)
    for set_backend in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp,
                        torch.backends.cuda.enable_cudnn_sdp):
        set_backend(False)  # the compiler makes faster kernels from the composed form for a single query
    length = -(-(a.prompt_tokens + WARMUP + a.measured + 1) // 8) * 8
    torch.set_default_dtype(torch.bfloat16 if a.precision == "bf16" else torch.float32)
    with torch.device(a.device):
        model = LM(a.vocab, *SIZES[a.size], a.batch, length, a.temperature)
        prompt = torch.randint(a.vocab, (a.batch, a.prompt_tokens))
    way, step = prepared_or_next(model, prompt, a.mode, cuda)
    model.start(prompt)
    for _ in range(WARMUP): step()
    if cuda: torch.cuda.synchronize()
    setup = time.time() - start
    ms = milliseconds(step, a.measured, cuda)
    if model.position.item() != a.prompt_tokens + WARMUP + a.measured: raise RuntimeError("a step did not run")
    weights = sum(p.nbytes for p in model.parameters()) - model.emb.weight.nbytes  # only one row of the embedding is read
    return dict(way=way, ms=round(statistics.median(ms), 4), std_ms=round(statistics.pstdev(ms), 4),
                tokens_per_second=round(a.batch / statistics.median(ms) * 1e3, 1), weight_gb=round(weights / 1e9, 3),
                setup_s=round(setup, 1))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--size", default="small", choices=SIZES)
    for name, default in (("vocab", 10000), ("batch", 1), ("ctx", 512), ("prompt_tokens", 128), ("measured", 256)):
        ap.add_argument("--" + name, type=int, default=default)
    ap.add_argument("--temperature", type=float, default=0.8, help="0: the most probable token")
    ap.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    ap.add_argument("--mode", default=MODES[0], choices=MODES)
    ap.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = ap.parse_args()
    for name in ("vocab", "batch", "prompt_tokens", "measured"):
        if getattr(a, name) < 1: ap.error(f"--{name} is {getattr(a, name)}, expected at least 1")
    needed = a.prompt_tokens + WARMUP + a.measured + 1
    if a.ctx < needed:
        ap.error(f"--ctx is {a.ctx}, expected at least {needed}: prompt, {WARMUP} tokens of warm-up and the measured ones")
    out = dict(peer="torch-" + torch.__version__, size=a.size, precision=a.precision, way=a.mode, vocab_size=a.vocab,
               batch=a.batch, prompt=a.prompt_tokens)
    try:
        out.update(run(a))
    except torch.cuda.OutOfMemoryError:
        out["error"] = "OOM"
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
