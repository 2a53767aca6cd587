#!/usr/bin/env python3
"""benchmarks/peers/torch_decode.py generates with its cache what the model without one would: the greedy tokens and the
logits of transformers' Llama with the same weights, in float32 on the CPU; and draws are as likely as their softmax.

Usage: check_torch_decode.py     (pip install torch transformers). Exits 1 when something differs, 77 without a library.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))
try:
    import torch, transformers, torch_decode
except ImportError as error:
    print(error)
    sys.exit(77)

V, D, F, LAYERS, HEADS, BATCH, PROMPT, TOKENS = 97, 48, 80, 3, 4, 2, 7, 20
TOLERANCE = 1e-5  # relative; FP32 sums of at most 97 terms in another order


def llama_of(model):
    config = transformers.LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=LAYERS,
                                      num_attention_heads=HEADS, rms_norm_eps=1e-5, tie_word_embeddings=False)
    llama = transformers.LlamaForCausalLM(config).eval()
    weights = {"model.embed_tokens": model.emb, "model.norm": model.norm, "lm_head": model.head}
    state = {name + ".weight": module.weight for name, module in weights.items()}
    for i, block in enumerate(model.blocks):
        parts = {"input_layernorm": block.n1.weight, "post_attention_layernorm": block.n2.weight,
                 "self_attn.o_proj": block.o.weight, "mlp.down_proj": block.w2.weight}
        parts.update(zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), block.qkv.weight.chunk(3)))
        parts.update(zip(("mlp.gate_proj", "mlp.up_proj"), block.w13.weight.chunk(2)))
        state.update({f"model.layers.{i}.{name}.weight": weight for name, weight in parts.items()})
    llama.load_state_dict(state)
    return llama


def main():
    torch.manual_seed(1)
    model = torch_decode.LM(V, D, F, LAYERS, HEADS, BATCH, PROMPT + TOKENS + 1, 0.0)
    for p in model.parameters():
        torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.2)  # large enough that every part shows
    llama = llama_of(model)
    prompt = torch.randint(V, (BATCH, PROMPT))
    model.start(prompt)
    for _ in range(TOKENS): model.step()
    # Without a cache, the whole text again at every token.
    text = prompt
    for _ in range(TOKENS + 1):
        logits = llama(text).logits[:, -1]
        text = torch.cat((text, logits.argmax(-1, keepdim=True)), 1)
    if not torch.equal(model.text, text):
        sys.exit(f"greedy tokens differ: {model.text.tolist()}, transformers' {text.tolist()}")
    own = model(model.text[:, -2:-1], torch.tensor([PROMPT + TOKENS - 1]))
    error = ((own - logits).norm() / logits.norm()).item()
    if not error <= TOLERANCE: sys.exit(f"logits differ by {error}, expected at most {TOLERANCE}")

    model.temperature = 0.5
    likely = torch.tensor([0.1, 0.2, 0.7])
    drawn = model.draw((0.5 * likely.log()).repeat(20000, 1))
    shares = torch.bincount(drawn[:, 0], minlength=3) / 20000
    if (shares - likely).abs().max() > 0.02: sys.exit(f"drawn {shares}, expected {likely}")  # six standard deviations
    print(f"the same {TOKENS} tokens, logits within {error:.1e}, draws as likely as their softmax")


with torch.no_grad():
    main()
