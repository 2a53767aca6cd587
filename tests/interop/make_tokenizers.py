#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers: small byte-level BPE tokenizers built as GPT-2's, Llama 3's, Qwen2.5's and SmolLM2's
are, and what Hugging Face's `tokenizers` library makes of some texts with them.

Usage: make_tokenizers.py CORPUS FOLDER     (pip install tokenizers; seen with 0.23.3)

CORPUS is a text file to learn merges from (tiny Shakespeare). NAME.json is the tokenizer, NAME.vectors.json a list of
{"text": ..., "ids": [...]}. Text that is no UTF-8 cannot be given to the library: there "bytes" (hexadecimal) stands
beside "text", in which each broken part is replaced by U+FFFD.
"""
import json, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

MORE = """def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
for (int i = 0; i < 10; ++i) { std::cout << i << '\\n'; }  // 0x7fff, 3.14159e-10
\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u73a9\u5427\u3002\u4eca\u5929\u5929\u6c14\u4e0d\u597d\u3002
\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445
caf\u00e9 na\u00efve r\u00e9sum\u00e9 \U0001f600\U0001f680 \U0001f469\u200d\U0001f4bb
"""

TEXTS = [
    "", " ", "\n", "a", "Hello, world!", "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
    "I'm sure you're right; they've said we'll go, he'd say it's SHE'S and WE'LL and don'T", "it\u2019s 'tis o'er ' s",
    "The year 1984 had 365 days, 8760 hours, 525600 minutes; pi is 3.14159265358979, \u0663\u0664\u0665 and \u00bd.",
    "def f(x):\n    if x > 0:\n\t\treturn {'a': [1, 2, 3]}\r\n    # done\n\n\n", "int main() { return a<b && c>>3 || !d; }  /* C */",
    "    four spaces\n\ttab  two   three    trailing   ", "line\r\nline\r\n\r\nline\n \n  \n", "\u00a0\u2003\u3000wide spaces\u2028line\u180eend\x0b\x0c\x85.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u73a9\u5427\u3002\u6df7\u5408English\u548c123\u6570\u5b57\uff01",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f600\U0001f680\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd \u2764\ufe0f", "\U00020000\U0002a6d6 \U0001d400\U0001d7d8",
    "cafe\u0301 caf\u00e9 A\u030a \u00c5 \u212b \u1e9b\u0323 \ufb01 \u1100\u1161\u11a8 \uac01 \u0958", "e" + "\u0301" * 40,
    "a" * 3000, " " * 500 + "x", "=" * 700, "\n" * 300, "ab" * 1000, "1234567890" * 60, "\u597d" * 400, "\U0001f600" * 200,
    "<|endoftext|>", "one<|endoftext|>two <|endoftext|><|endoftext|>", "<|endoftext", "<|endoftext|<|endoftext|>|>",
    "<tool> <tool>x</tool>", "\u017f \u212a 'S '\u017f", "\ufeffbom \ufffd \u0000nul\u0001", "\u0130\u0131 \u00df \u1e9e \u01c5",
]
BROKEN = [b"\xff", b"ok \xc3\x28 no", b"\xe4\xbb", b"\xed\xa0\x80 surrogate", b"\xf0\x9f\x98 cut \xf0\x9f\x98\x80",
          b"\xc0\xaf overlong \xf4\x90\x80\x80", b"\x80\x81\x82"]


def build(name, corpus):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt2", "smollm2"))
    before = {"gpt2": [], "smollm2": [pre_tokenizers.Digits(individual_digits=True)],
              "llama3": [pre_tokenizers.Split(Regex(LLAMA3), "isolated")],
              "qwen2": [pre_tokenizers.Split(Regex(QWEN2), "isolated")]}[name]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, byte_level]) if before else byte_level
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([corpus, MORE * 20], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("</tool>", normalized=False)])
    if name == "llama3":
        end = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)])
    return tokenizer


def main():
    corpus, folder = open(sys.argv[1], encoding="utf-8").read()[:400_000], sys.argv[2]
    for name in ("gpt2", "llama3", "qwen2", "smollm2"):
        tokenizer = build(name, corpus)
        tokenizer.save(f"{folder}/{name}.json", pretty=False)
        rows = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in TEXTS]
        for data in BROKEN:
            text = data.decode("utf-8", errors="replace")
            rows.append({"bytes": data.hex(), "text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids})
        with open(f"{folder}/{name}.vectors.json", "w", encoding="utf-8") as out:
            out.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
