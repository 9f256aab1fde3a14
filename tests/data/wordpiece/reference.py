"""BERT's tokenization (Devlin et al. 2018; google-research/bert, tokenization.py) in plain Python.

Shares nothing with Trireme. Two points follow Hugging Face's BertTokenizer, where Google's later version differs:
all categories C* are control characters (Google: Cc and Cf), and words of more than 100 characters are unknown (200).
"""
import unicodedata

MAX_WORD = 100


def is_cjk(code):
    return any(low <= code <= high for low, high in (
        (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
        (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)))


def is_punctuation(char):
    return (char.isascii() and char.isprintable() and not char.isalnum() and char != " ") \
        or unicodedata.category(char).startswith("P")


def clean(text):
    kept = []
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            kept.append(" ")
        elif char != "\ufffd" and not category.startswith("C"):
            kept.append(f" {char} " if is_cjk(ord(char)) else char)
    return "".join(kept)


def words(text, lowercase):
    """The words of `text`, which pieces are looked up in."""
    found = []
    for token in clean(text).split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", token.lower())
            token = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        word = ""
        for char in token:
            if is_punctuation(char):
                found += [word, char]
                word = ""
            else:
                word += char
        found.append(word)
    return [word for word in found if word]


def pieces(word, vocabulary):
    """The longest piece first; [UNK] alone where a part has none."""
    if len(word) > MAX_WORD:
        return ["[UNK]"]
    result = []
    begin = 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        result.append(piece)
        begin = end
    return result


def read_vocabulary(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return {line.rstrip("\n"): number for number, line in enumerate(file)}


def encode(text, vocabulary, lowercase):
    return [vocabulary[piece] for word in words(text, lowercase) for piece in pieces(word, vocabulary)]
