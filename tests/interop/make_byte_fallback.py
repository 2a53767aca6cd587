#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers/byte_fallback: small BPE tokenizers with byte fallback in the forms of tokenizer.json
that are in use, and what Hugging Face's `tokenizers` library makes of some texts with them.

Usage: make_byte_fallback.py CORPUS FOLDER                       writes the fixtures
       make_byte_fallback.py CORPUS --check QUERN FILE...        10,000 lines of the files, compared with `quern`
(pip install tokenizers sentencepiece; seen with 0.23.3, 0.2.3)

CORPUS is a text file to learn from (tiny Shakespeare). NAME.json is a tokenizer, texts.json a list of texts and
NAME.ids.json the ids of each. --check learns 4,000 tokens from CORPUS and the files, and exits with 1 if any id differs.
"""
import array, io, json, os, subprocess, sys, tempfile
import sentencepiece, tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from make_sentencepiece import SPECIAL
from make_tokenizers import BROKEN, MORE, TEXTS

MARK = "\u2581"
MARKED = [MARK, MARK + "a" + MARK + MARK + "b", "a" + MARK, " " + MARK + " x", "<0x0A>", "t t", "a t ta", " t t",
          "<|user|>\n\n hi  <|end|> \n\tx<|left|> y", "a \u00a0\u2003<|left|>\u3000<|user|>  <|user|>", "</s>\n", " <tool> x"]


def learn(texts, size):
    """Vocabulary and merges of a SentencePiece BPE."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts for line in text.splitlines()), model_writer=model, vocab_size=size,
        model_type="bpe", byte_fallback=True, character_coverage=0.9995, add_dummy_prefix=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    merges = []
    for piece in vocabulary:
        if not pieces.is_byte(vocabulary[piece]) and vocabulary[piece] > 2:
            cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            pairs = [pair for pair in cuts if pair[0] in vocabulary and pair[1] in vocabulary]
            merges += sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return vocabulary, merges


def build(name, vocabulary, merges):
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                                     ignore_merges=name == "metaspace_always"))
    replace, prefix = normalizers.Replace(" ", MARK), name not in ("gemma", "metaspace_never")
    if name in ("llama2", "mistral", "phi3"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace])
    elif name == "gemma":
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        scheme = name.removeprefix("metaspace_")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, scheme, split=scheme == "always")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    tokenizer.add_special_tokens([AddedToken(token, normalized=name == "mistral", special=True)
                                  for token in ("<unk>", "<s>", "</s>")])
    if name == "phi3":
        tokenizer.add_special_tokens([AddedToken("</s>", rstrip=True, normalized=False, special=True),
                                      AddedToken("<|user|>", rstrip=True, normalized=False, special=True),
                                      AddedToken("<|end|>", normalized=False, special=True),
                                      AddedToken("<|left|>", lstrip=True, normalized=False, special=True)])
        tokenizer.add_tokens([AddedToken("t t", normalized=True)])
    if name == "gemma":
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("\n\n", "\n\n\n", MARK * 2, "t t")])
    if name == "metaspace_first":
        tokenizer.add_tokens([AddedToken("t t", normalized=True), AddedToken("<tool>", normalized=False)])
    if name in ("llama2", "mistral"):
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


NAMES = ("llama2", "mistral", "gemma", "phi3", "metaspace_first", "metaspace_always", "metaspace_never")


def text_of(name, tokenizer):
    data = json.loads(tokenizer.to_str())
    if name == "mistral":  # older files have "a b" for a merge
        data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def write_fixtures(corpus, folder):
    os.makedirs(folder, exist_ok=True)
    lines = [line for line in corpus.splitlines(keepends=True) if line.strip()][1000:1120]
    texts = [t for t in TEXTS if len(t) < 300] + ["ab" * 100, " " * 60 + "x"] + SPECIAL + MARKED + lines
    texts += [text + line for text, line in zip(lines, lines[1:])][:40] + [data.decode(errors="replace") for data in BROKEN]
    vocabulary, merges = learn([corpus, MORE * 20], 700)
    with open(f"{folder}/texts.json", "w", encoding="utf-8") as out:
        json.dump(texts, out, ensure_ascii=False, indent=0)
    for name in NAMES:
        tokenizer = build(name, vocabulary, merges)
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as out:
            out.write(text_of(name, tokenizer) + "\n")
        with open(f"{folder}/{name}.ids.json", "w", encoding="utf-8") as out:
            rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
            out.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def check(corpus, quern, files):
    """Each line is a document: data prepare encodes it and puts </s> behind it."""
    texts = [open(file, encoding="utf-8", errors="replace").read() for file in files]
    lines = [line for text in texts for line in text.split("\n") if line]
    step = max(1, len(lines) // 9_900)
    lines = (lines[::step] + [t for t in TEXTS + SPECIAL + MARKED if t] * 2)
    lines = (lines + [" ".join(pair) for pair in zip(lines, lines[7:])])[-10_000:]
    vocabulary, merges = learn([corpus, MORE * 20, *texts], 4000)
    fine = True
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/tok")
            tokenizer = build(name, vocabulary, merges)
            with open(f"{folder}/tok/tokenizer.json", "w", encoding="utf-8") as out:
                out.write(text_of(name, tokenizer))
            with open(f"{folder}/lines.jsonl", "w", encoding="utf-8") as out:
                out.writelines(json.dumps({"text": line}) + "\n" for line in lines)
            subprocess.run([quern, "data", "prepare", f"{folder}/lines.jsonl", "--tokenizer", f"{folder}/tok", "--out",
                            f"{folder}/data", "--validation-fraction", "0"], check=True, capture_output=True)
            ours = array.array("H", open(f"{folder}/data/train_00000.bin", "rb").read()[1024:]).tolist()
        expected = [tokenizer.encode(line, add_special_tokens=False).ids + [2] for line in lines]
        differ, at = 0, 0
        for line, ids in zip(lines, expected):
            if ours[at:at + len(ids)] != ids:
                differ += 1
                print(f"    {name} differs: {line[:60]!r}")
                break
            at += len(ids)
        same = not differ and at == len(ours)
        fine &= same
        print(f"{name:<18} {len(lines)} lines, {at} tokens: {'equal' if same else 'NOT equal'}")
    print("all equal" if fine else "NOT equal")
    return fine


def main():
    corpus = open(sys.argv[1], encoding="utf-8").read()[:400_000]
    if sys.argv[2] != "--check":
        return write_fixtures(corpus, sys.argv[2])
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
    sys.exit(0 if check(corpus, sys.argv[3], sys.argv[4:]) else 1)


if __name__ == "__main__":
    main()
