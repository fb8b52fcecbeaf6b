"""Writes the tokenizer fixtures: small tokenizer.json files and what the Hub's own library makes of awkward texts.

The oracle is the PyPI package `tokenizers` (0.23.3), which trains each vocabulary and encodes each text:
    pip install tokenizers==0.23.3 && python make_fixtures.py
For each style STYLE.json is the tokenizer and STYLE.expected.json a list of {"text", "ids", "ids_special", "decoded",
"decoded_special"}: ids without and with the post-processor's tokens, and the text of the latter without and with special
tokens.
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent

# The split patterns are the published ones of the models named; they are what the styles are about.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")

CORPUS = [
    "The gathering of the weights begins before the layer that needs them, and it ends while the layer before it works.",
    "It's what they've said: we'll see, I'm sure, he'd know, don't ask. IT'S LOUD. They're there; we've been there.",
    "In 1969 there were 12345 of 67890; in 2024, 3.14159 and 2,718,281.",
    "def main(argument):\n    if argument > 0:\n        return argument\n    return None\n",
    "naïve café, déjà vu, Ångström, über, señor, façade, cœur",
    "数据并行和张量并行。模型的显存由参数、梯度和优化器状态组成。",
    "Привет, мир. Это проверка. ελληνικά και άλλα. 日本語のテキスト。한국어 문장입니다.",
    "the other then these there weather gather together father another mother brother",
] * 4

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    "Hello world",
    " Hello  world ",
    "hello\nworld\r\n\r\nagain\n\n\n  indented\n",
    "tabs\tand\t\ttabs \t mixed \n \t\n",
    "It's they've WE'LL I'M he'd don't 'tis o'clock 'S",
    "1 12 123 1234 12345 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ १२३",
    "the gathering of the weights together with the weather",
    "naïve café déjà vu",
    "cafe\u0301 e\u0301 a\u030a n\u0303 \u0301alone o\u0302\u0323",
    "\u1e9b\u0323 \ufb01 \u212b \u2126 \uac00 \u1100\u1161",
    "数据并行和张量并行。",
    "混合 mixed 文字 with 12 数字",
    "日本語のテキスト 한국어 문장",
    "Привет, мир! ελληνικά",
    "مرحبا بالعالم שלום עולם",
    "🙂 🙂🙂 👍🏽 👨‍👩‍👧‍👦 🇩🇪",
    "a🙂b",
    "\u00a0no-break\u00a0space\u2003em\u3000ideographic\u0085nel\u180emvs",
    "\u200bzero\u200dwidth\ufeffbom",
    "\x00\x01\x7f control",
    "\ufffd replacement",
    "!!!???...---___===",
    "(a)[b]{c}<d>\"e\"`f`~g",
    "https://example.org/a?b=c&d=%20#e",
    "x=1;y=2;\n\n\tif(x<y){return x;}//end",
    "   leading and trailing   ",
    "word" * 30,
    " " * 40 + "x",
    "\n" * 12,
    "ſ 'ſ don'T ß SS ﬀ",
    "<s>inside</s> and<s> twice",
    "<|eos|>start<|eos|><|eos|> end <|eos|>",
    "a<extra>b <extra> c  <extra>  d",
    "single word_x word word, keyword sword",
    "word\u200d word\u2160 \u24b6word word\u0301 (word)",
    "left  <left> right  <right>  both",
    "<unk><0x41>▁under▁score",
    "<|eo s|> <|eos| <s",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001f9ff",
    "、。「」 Han-script punctuation 々〆",
    "ﷺ ﷽ \u0e01\u0e33 \u0915\u094d\u0937",
]

ADDED = [
    AddedToken("<extra>", normalized=False),
    AddedToken("word", single_word=True),
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True),
]
SPECIAL = ["<s>", "</s>", "<|eos|>"]


def template(tokenizer, before, after):
    tokens = [(name, tokenizer.token_to_id(name)) for name in before + after]
    return processors.TemplateProcessing(single=" ".join(before + ["$A"] + after), special_tokens=tokens)


def byte_level_base(size, split, normalizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2():
    tokenizer = byte_level_base(420, pre_tokenizers.ByteLevel(add_prefix_space=False), None)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix():
    split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=True)])
    tokenizer = byte_level_base(400, split, None)
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return tokenizer


def llama3():
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = byte_level_base(420, split, None)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                    template(tokenizer, ["<s>"], [])])
    # What Llama 3 sets: a piece that is a token is that token, also when merges do not lead there.
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"]["Hello"] = len(data["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(data))


def qwen2():
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level_base(420, split, normalizers.NFC())


def sentencepiece_base(normalizer, pre_tokenizer, **options):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
    tokenizer.normalizer = normalizer
    # Trained on words, as SentencePiece does: a merge never crosses a space.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    size = 560 if options.get("byte_fallback") else 300
    specials = ["<unk>"] + SPECIAL + [f"<0x{byte:02X}>" for byte in range(256) if options.get("byte_fallback")]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    # Latin text alone, so that other scripts are unknown. (The trainer's limit_alphabet would do, but breaks ties at random.)
    tokenizer.train_from_iterator([text for text in CORPUS if max(text) < "\u0250"], trainer)
    tokenizer.pre_tokenizer = pre_tokenizer
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


def llama2():
    tokenizer = sentencepiece_base(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
                                   byte_fallback=True, fuse_unk=True)
    tokenizer.post_processor = template(tokenizer, ["<s>"], ["</s>"])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def metaspace():
    """Mistral's newer files: Metaspace on the first part only; no byte fallback here, so that unk tokens are fused."""
    tokenizer = sentencepiece_base(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), fuse_unk=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def metaspace_split():
    """Splitting Metaspace, unk tokens not fused, and splits that merge, remove or join their matches."""
    tokenizer = sentencepiece_base(
        normalizers.Replace(Regex(r"[\r\n]+"), " "),
        pre_tokenizers.Sequence([
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Split(",", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[.!?]"), "contiguous"),
            pre_tokenizers.Split("(", "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\t"), "removed"),
            pre_tokenizers.Split(Regex(r"\p{Han}+"), "isolated", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
        ]))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def record(tokenizer, text):
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    special = tokenizer.encode(text, add_special_tokens=True).ids
    return {"text": text, "ids": plain, "ids_special": special, "decoded": tokenizer.decode(special),
            "decoded_special": tokenizer.decode(special, skip_special_tokens=False)}


def main():
    pairs = {"gpt2", "llama3", "metaspace"}  # styles whose file has merges as pairs, as the library writes; others as strings
    for make in [gpt2, gpt2_prefix, llama3, qwen2, llama2, metaspace, metaspace_split]:
        tokenizer = make()
        tokenizer.add_tokens(ADDED)
        data = json.loads(tokenizer.to_str())
        if make.__name__ not in pairs:
            data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
        tokenizer = Tokenizer.from_str(json.dumps(data))  # what is recorded is what the file says
        compact = {"ensure_ascii": False, "separators": (",", ":")}
        (FOLDER / f"{make.__name__}.json").write_text(json.dumps(data, **compact) + "\n", encoding="utf-8")
        lines = ",\n".join(json.dumps(record(tokenizer, text), **compact) for text in TEXTS)
        (FOLDER / f"{make.__name__}.expected.json").write_text("[" + lines + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
