#!/usr/bin/env python3
"""Writes golden.json: small byte-level BPE tokenizers as tokenizer.json, and ids of texts by the tokenizers library.

Needs: pip install tokenizers (made with 0.23.3). Usage: make_golden.py > golden.json
"""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
          r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")
QWEN = LLAMA3.replace("{1,3}", "")
GPT4O = (r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
         r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
         r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""")

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's the dog's day, and they're sure we'll win; I'd say YOU'LL too.\n",
    "def encode(text):\n    for word in text.split():\n        yield table.get(word, 0)  # 1234567 + 89\n\n\n",
    "Größe, Straße, Fußgängerübergänge: der schnelle braune Fuchs springt über den faulen Hund, 2024.\r\n",
    "Быстрая коричневая лиса прыгает через ленивую собаку. Съешь же ещё этих мягких французских булок.\n",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园吧。素早い茶色の狐がのろまな犬を飛び越える。\n",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. नमस्ते दुनिया, यह एक परीक्षण है। 빠른 갈색 여우가 게으른 개를 뛰어넘는다.\n",
    "Việt Nam, cà phê sữa đá; naïve café résumé. The the the the fox fox over over 12 123 1234 12345.\n",
    "😀😀🎉 👩‍👧‍👦 emoji!!! ... --- === https://example.org/a?b=c&d=e#f \t\t tabs \t and  double   blanks\n",
] * 3

PIECES = (["'s", "'S", "'ſ", "'LL", "'Ve", "'x", "can't", "I'M", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0",
           "\u3000", "\u2028", "\x85", "\x00", "\x1c", "0", "12", "1234567", "३४५", "²½Ⅷ", "٣", "the", " the", "The", "FOX", "naïve",
           "e\u0301", "cafe\u0301", "A\u030a", "\u212b", "각", "\u1100\u1161\u11a8", "중국", "日本語テキスト", "مرحبا", "हिन्दी", "ไทย",
           "Привет", "😀", "👩‍👧‍👦", "🏳️‍🌈", "…", "--", "==>", "{}", "();", "//", "#include <a.h>", "\u200b", "\ufeff", "𝔘𝔫𝔦",
           "\U000105c0", "\U00016130", "\U0010ffff", "<|endoftext|>", "<|im_start|>", "<think>", " <think> ", "a<think>b", "<x> ", " <x>",
           "  <x>  ", "<word>", "a<word>", "<word>b", " <word>.", "_<word>", "é<c\u0301>", "<\u0107>", "<|endoftext|><|endoftext|>", "<|end"])


def texts(count, seed):
    rng = random.Random(seed)
    result = [b"", b"\xff\xfe", b"ab\x80cd", b"\xe4\xb8", b"\xf0\x9f\x98 x", b"\xed\xa0\x80"] + [t.encode() for t in CORPUS[:8]]
    for _ in range(count):
        result.append("".join(rng.choice(PIECES) for _ in range(rng.randint(1, 9))).encode())
    return result


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def plain_byte_level():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def train(pre_tokenizer, normalizer=None, size=560, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def edited(tokenizer, edit):
    content = json.loads(tokenizer.to_str())
    edit(content)
    return Tokenizer.from_str(json.dumps(content))


def whole_words(content):
    """ignore_merges with words that no merge makes."""
    model = content["model"]
    model["ignore_merges"] = True
    for word in ("ĠViá»ĩt", "Ġfoxes", "ĠStraÃŁe"):
        model["vocab"].setdefault(word, len(model["vocab"]))


def old_merges(content):
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]


def without_some_bytes(content):
    """A vocabulary without bytes that no merge needs: they become unk_token."""
    model = content["model"]
    used = {c for pair in model["merges"] for token in pair for c in token}
    tokens = [t for t in model["vocab"] if len(t) > 1 or t in used]
    model["vocab"] = {t: i for i, t in enumerate(tokens)}
    model["unk_token"] = "<|endoftext|>"


def main():
    gpt2 = edited(train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)), old_merges)
    prefixed = train(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True))
    trained = train(pre_tokenizers.Sequence([split(LLAMA3), plain_byte_level()]))
    llama3 = edited(trained, whole_words)
    llama3.add_special_tokens(["<|im_start|>", "<think>"])
    qwen = train(pre_tokenizers.Sequence([split(QWEN), plain_byte_level()]), normalizers.NFC())
    qwen.add_special_tokens([AddedToken("<|im_start|>", normalized=False)])
    qwen.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<c\u0301>", normalized=True),
                     AddedToken("  ", normalized=True), AddedToken("   ", normalized=True)])
    smollm = edited(train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])), without_some_bytes)
    gpt4o = train(pre_tokenizers.Sequence([split(GPT4O), plain_byte_level()]))
    gpt4o.add_tokens([AddedToken("<x>", lstrip=True, rstrip=True, normalized=False), AddedToken("<word>", single_word=True, normalized=False)])
    partial = train(pre_tokenizers.Sequence([split(r"\p{L}+|\d"), pre_tokenizers.Digits(individual_digits=False), plain_byte_level()]),
                    normalizers.NFKC())
    cases = []
    for number, (name, tokenizer) in enumerate([("gpt2", gpt2), ("prefixed", prefixed), ("llama3", llama3), ("qwen", qwen),
                                                ("smollm", smollm), ("gpt4o", gpt4o), ("partial", partial)]):
        golden = []
        for text in texts(120, number):
            ids = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
            golden.append([text.hex(), ids])
        cases.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "golden": golden})
    model = json.loads(trained.to_str())["model"]
    qwen_model = json.loads(train(pre_tokenizers.Sequence([split(QWEN), plain_byte_level()]), normalizers.NFC()).to_str())["model"]
    training = {"corpus": CORPUS, "llama3": {"vocab": model["vocab"], "merges": model["merges"]},
                "qwen": {"vocab": qwen_model["vocab"], "merges": qwen_model["merges"]}}
    print(json.dumps({"cases": cases, "training": training}, ensure_ascii=True, separators=(",", ":")))


main()
