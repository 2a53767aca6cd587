#!/usr/bin/env python3
"""PyTorch peer for training quality: byte-level tinyshakespeare, first 90 % train, rest validation.

Same Transformer as torch_lm.py (RMSNorm, RoPE, SwiGLU, untied head, no dropout; normal(0, 0.02) init, residual output projections
scaled by 1/sqrt(2 L)), AdamW (betas 0.9/0.99, weight decay 0.1 on matrices), linear warm-up then cosine to a tenth, clip 1.0.
Validation is the mean loss in nats a byte over all non-overlapping windows of the validation part. Prints a JSON line.
  cpu-preset: 4 layers, d 128, 4 heads, d_ff 344, ctx 64, batch 12, 2000 steps, lr 1e-3
  gpu-preset: 6 layers, d 384, 6 heads, d_ff 1024, ctx 256, batch 64, 2000 steps, lr 1e-3
Usage: torch_train_shakespeare.py cpu|gpu DEVICE fp32|bf16 SEED [STEPS [CORPUS]]
"""
import importlib.util, json, math, os, sys, time
import torch, torch.nn as nn
here = os.path.dirname(os.path.abspath(__file__))
src = open(os.path.join(here, "torch_lm.py")).read().rsplit("\nmain()", 1)[0]
ns = {}; exec(compile(src, "torch_lm", "exec"), ns); LM = ns["LM"]
preset, dev, dtype, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
P = dict(cpu=dict(n=4, d=128, h=4, f=344, ctx=64, batch=12), gpu=dict(n=6, d=384, h=6, f=1024, ctx=256, batch=64))[preset]
steps, warm, lr = int(sys.argv[5]) if len(sys.argv) > 5 else 2000, 100, 1e-3
corpus = sys.argv[6] if len(sys.argv) > 6 else os.path.join(here, "../../data/tinyshakespeare.txt")
torch.manual_seed(seed)
data = torch.frombuffer(bytearray(open(corpus, "rb").read()), dtype=torch.uint8).long().to(dev)
cut = len(data) * 9 // 10; tr, va = data[:cut], data[cut:]
m = LM(256, P["ctx"], P["d"], P["f"], P["n"], P["h"], "sdpa").to(dev)
with torch.no_grad():
    for b in m.blocks: b.o.weight.mul_((2 * P["n"]) ** -0.5); b.w2.weight.mul_((2 * P["n"]) ** -0.5)
dec = [p for p in m.parameters() if p.dim() >= 2]; nod = [p for p in m.parameters() if p.dim() < 2]
opt = torch.optim.AdamW([dict(params=dec, weight_decay=0.1), dict(params=nod, weight_decay=0.0)], lr=lr, betas=(0.9, 0.99))
auto = lambda: torch.autocast(dev, torch.bfloat16, enabled=dtype == "bf16")
T = P["ctx"]; off = torch.arange(T, device=dev)
def val():
    n = (len(va) - 1) // T; x = va[:n * T].view(n, T); y = va[1:n * T + 1].view(n, T); tot = 0.0
    with torch.no_grad(), auto():
        for i in range(0, n, 64): tot += float(m(x[i:i + 64], y[i:i + 64])) * len(x[i:i + 64])
    return tot / n
t0 = time.time(); curve = {}
for it in range(steps):
    f = it / warm if it < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (it - warm) / (steps - warm)))
    for g in opt.param_groups: g["lr"] = lr * f
    i = torch.randint(len(tr) - T - 1, (P["batch"],), device=dev)[:, None] + off
    with auto(): loss = m(tr[i], tr[i + 1])
    loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.0); opt.step(); opt.zero_grad()
    if (it + 1) % 250 == 0: curve[it + 1] = round(val(), 4)
print(json.dumps(dict(preset=preset, dev=dev, dtype=dtype, seed=seed, params=sum(p.numel() for p in m.parameters()), train_s=round(time.time() - t0, 1), val=curve, best=min(curve.values()))), flush=True)
