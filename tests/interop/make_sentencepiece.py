#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers/{exact,prefix}: small SentencePiece models, and what transformers' AutoTokenizer and
the library itself make of some texts with them.

Usage: make_sentencepiece.py CORPUS FOLDER     (pip install transformers sentencepiece protobuf; seen with 5.23.0, 0.2.3)

CORPUS is a text file to learn from (tiny Shakespeare). `exact` is as `quern tokenizer train` makes them: no space is put
before a text. `prefix` puts one, as Llama 2's does. vectors.json is a list of {"text", "ids", "decoded"}: in `exact` the
ids are AutoTokenizer's, in `prefix` the library's (transformers leaves the space out where a text begins with one);
"decoded" is what AutoTokenizer makes of the ids without special tokens, where the two agree.
"""
import json, os, sys
import sentencepiece
from transformers import AutoTokenizer
from make_tokenizers import MORE, TEXTS

SPECIAL = ["</s>", "one</s>two <s> three", " </s> a", "</s>  two", "<unk>x", "<s", "<0x41>", "a\u2581b"]


def added(content):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True}


def build(folder, corpus, prefix):
    os.makedirs(folder, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((corpus + MORE * 20).splitlines()), model_writer=open(f"{folder}/tokenizer.model", "wb"),
        vocab_size=700, model_type="bpe", byte_fallback=True, character_coverage=0.9995, add_dummy_prefix=prefix,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, minloglevel=2,
        allow_whitespace_only_pieces=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_prefix_space": prefix, "add_bos_token": prefix,
              "add_eos_token": False, "clean_up_tokenization_spaces": False, "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>",
              "added_tokens_decoder": {str(i): added(c) for i, c in enumerate(["<unk>", "<s>", "</s>"])}}
    with open(f"{folder}/tokenizer_config.json", "w") as out:
        json.dump(config, out, indent=2)
        out.write("\n")


def vectors(folder, prefix):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    library = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
    rows = []
    for text in TEXTS if prefix else TEXTS + SPECIAL:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if prefix and ids != library.encode(text):
            assert text.startswith(" "), text
            rows.append({"text": text, "ids": library.encode(text)})
        else:
            rows.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    with open(f"{folder}/vectors.json", "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main():
    corpus, folder = open(sys.argv[1], encoding="utf-8").read()[:400_000], sys.argv[2]
    for name, prefix in (("exact", False), ("prefix", True)):
        build(f"{folder}/{name}", corpus, prefix)
        vectors(f"{folder}/{name}", prefix)


if __name__ == "__main__":
    main()
