#!/usr/bin/env python3
"""Writes tests/fixtures/rope/frequencies.json: RoPE's frequencies as transformers computes them.

Usage: tests/interop/make_rope_frequencies.py [OUT]

Each case holds the settings of a Llama configuration and the inverse frequencies, in radians a
position, that transformers' own functions make of them (modeling_rope_utils, in FP32).
"""
import json
import pathlib
import sys

from transformers import LlamaConfig, __version__
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

OUT = pathlib.Path(__file__).parents[1] / "fixtures" / "rope" / "frequencies.json"


def llama3(factor, low, high, original):
    return dict(rope_type="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high,
                original_max_position_embeddings=original)


CASES = [
    (dict(rope_type="default"), 10000.0, 64),
    (dict(rope_type="linear", factor=4.0), 10000.0, 64),
    (llama3(8.0, 1.0, 4.0, 8192), 500000.0, 128),   # Llama 3.1
    (llama3(32.0, 1.0, 4.0, 8192), 500000.0, 64),   # Llama 3.2 1B
    (llama3(4.0, 2.0, 3.0, 64), 10000.0, 16),       # a narrow blend
]


def frequencies(rope, theta, head_dim):
    config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim,
                         max_position_embeddings=131072,
                         rope_parameters={**rope, "rope_theta": theta})
    return LlamaRotaryEmbedding(config).inv_freq.tolist()


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    cases = [{"rope": rope, "theta": theta, "head_dim": D, "frequencies": frequencies(rope, theta, D)}
             for rope, theta, D in CASES]
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else OUT
    text = ",\n".join("  " + json.dumps(case) for case in cases)
    out.write_text(f'{{"transformers": "{__version__}", "cases": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
