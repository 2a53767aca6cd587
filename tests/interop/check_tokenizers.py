#!/usr/bin/env python3
"""Whether transformers' AutoTokenizer gives the ids and the text that Quern does, for every kind of tokenizer that Quern
writes: one that `quern tokenizer train` made, the copies of byte-level BPE in a run, and the byte tokenizer of an export;
and whether Quern reads each of them again after transformers' save_pretrained.

Usage: check_tokenizers.py QUERN CORPUS     (pip install transformers sentencepiece protobuf)

QUERN is the program, CORPUS a text file to learn from (tiny Shakespeare). Exits with 1 when any text differs; the
summary goes to stdout (tests/interop/results/tokenizers.txt).
"""
import json, os, subprocess, sys, tempfile
import sentencepiece, tokenizers, transformers
from shutil import copyfile
from transformers import AutoTokenizer, LlamaTokenizerFast
from make_sentencepiece import SPECIAL
from make_tokenizers import MORE, TEXTS

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "tokenizers")


def quern(*args, text=None):
    done = subprocess.run([sys.argv[1], *args], input=text, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"quern {' '.join(args)}: {done.stderr.decode()}")
    return done.stdout


def check(name, folder, texts, loader=AutoTokenizer):
    """Whether all texts and the tokens around a text are alike."""
    tokenizer = loader.from_pretrained(folder)
    differ = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        ours = [int(i) for i in quern("tokenizer", "encode", folder, "-", text=text.encode()).split()]
        same = ids == ours
        if same:
            back = quern("tokenizer", "decode", folder, text=" ".join(map(str, ids)).encode()).decode(errors="replace")
            same = back == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if not same:
            differ.append(text)
    info = dict(line.split() for line in quern("tokenizer", "info", folder).decode().splitlines())
    end = "none" if tokenizer.eos_token_id is None else str(tokenizer.eos_token_id)
    added = [i for i in tokenizer("a").input_ids if i not in tokenizer("a", add_special_tokens=False).input_ids]
    begin = str(added[0]) if added else "none"
    ends = info["end"] == end and info["begin"] == begin
    print(f"{name:<28} {type(tokenizer).__name__:<24} {info['vocabulary']:>6}  {len(texts) - len(differ)} of {len(texts)} "
          f"texts alike, begin and end {'alike' if ends else 'DIFFER'}")
    for text in differ:
        print(f"    differs: {text[:60]!r}")
    return not differ and ends


def trained(folder, corpus):
    with open(f"{folder}/text.txt", "w", encoding="utf-8") as out:
        out.write(corpus + MORE * 20)
    quern("tokenizer", "train", f"{folder}/text.txt", "--vocab", "2000", "--special", "<|user|>,<|im_end|>", "--out",
          f"{folder}/trained")
    return f"{folder}/trained"


def exported_bytes(folder):
    """The tokenizer of a byte model's export."""
    quern("train", "--train", f"{folder}/text.txt", "--out", f"{folder}/run", "--device", "cpu", "--steps", "1", "--layers",
          "1", "--d-model", "32", "--heads", "2", "--ctx", "32", "--batch", "1", "--eval-every", "0", "--sample-every", "0")
    quern("export", f"{folder}/run", f"{folder}/export", "--latest")
    return f"{folder}/export"


def check_both(name, folder, texts):
    """The folder, and the one that transformers' save_pretrained makes of it."""
    saved = f"{folder}-saved"
    AutoTokenizer.from_pretrained(folder).save_pretrained(saved)
    return check(name, folder, texts) & check("  after save_pretrained", saved, texts)


def main():
    print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
          f"sentencepiece {sentencepiece.__version__}")
    corpus = open(sys.argv[2], encoding="utf-8").read()[:400_000]
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        texts = TEXTS + SPECIAL
        more = ["<|user|>Hello<|im_end|>", "x <|im_end|> y"]
        made = trained(folder, corpus)
        fine &= check_both("quern tokenizer train", made, texts + more)
        fine &= check("as LlamaTokenizer", made, texts + more, LlamaTokenizerFast)
        os.mkdir(f"{folder}/model")
        copyfile(f"{made}/tokenizer.model", f"{folder}/model/tokenizer.model")
        with open(f"{made}/tokenizer_config.json") as source, open(f"{folder}/model/tokenizer_config.json", "w") as out:
            json.dump(json.load(source) | {"tokenizer_class": "LlamaTokenizer"}, out)
        fine &= check_both("tokenizer.model alone", f"{folder}/model", texts + more)
        fine &= check_both("quern export, bytes", exported_bytes(folder), texts)
        for name in ("gpt2", "llama3", "qwen2", "smollm2"):
            copy = f"{folder}/{name}"
            os.mkdir(copy)
            with open(f"{FIXTURES}/{name}.json", encoding="utf-8") as source:
                json_text = source.read()
            with open(f"{copy}/tokenizer.json", "w", encoding="utf-8") as out:
                out.write(json_text)
            # transformers' name for the end, as the folders of these models have it
            with open(f"{copy}/tokenizer_config.json", "w") as out:
                json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}, out)
            fine &= check_both(f"tokenizer.json as {name}'s", copy, texts)
    print("all alike" if fine else "NOT alike")
    sys.exit(0 if fine else 1)


main()
