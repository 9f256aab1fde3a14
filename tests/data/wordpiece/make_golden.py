#!/usr/bin/env python3
"""Writes vocab.txt and golden.json: texts and their ids, cased and uncased, by reference.py. Run it in this folder."""
import json
import random
import unicodedata
import zlib

import reference

TEXTS = [
    "", " ", "\n", "a", " a ", "a  b", "Hello world", "Hello, world!", "HELLO hello HeLLo", "it's we'll they've I'd don't",
    "x = 3.14159; y[10] += 0x1F", "1234567890 12ab34 1,000.50", "...", "!?!?!? ...   ...", "http://example.org/a?b=c&d=e#f",
    "e-mail: some.one+tag@example.com", "$5 + €6 < £7 ^ `tick` ~tilde~ |pipe|", "«guillemets» „quotes‟ ‘single’ “double” ‹x›",
    "em—dash en–dash figure‒dash minus−sign hyphen‐hyphen soft\u00adhyphen", "unaffable unwanted running", "C++ C# F# A* #hash @at",
    "[CLS] text [SEP] [MASK] [PAD] [UNK] [unused1]", "[cls] [mask]", "##ing ## #", "a##b", "<s> </s> <unk> <|endoftext|>",
    "supercalifragilisticexpialidocious", "a" * 99, "a" * 100, "a" * 101, "a" * 200, "a" * 1000, "é" * 50, "é" * 100, "é" * 101,
    "e\u0301" * 50, "e\u0301" * 51, "e\u0301" * 100, "각" * 33, "각" * 34, "ab" * 50 + ".", "a" * 60 + "-" + "a" * 60, "你" * 150,
    "Der schnelle braune Fuchs springt über den faulen Hund; Größe, Maß, STRASSE, ẞ.", "Le cœur déçu mais l'âme plutôt naïve, Noël à Œuvre.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia: ¿qué? ¡sí!", "Luís argüia à Júlia que «brações, fé, chá, óxido» eram palavras.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig", "Příliš žluťoučký kůň úpěl ďábelské ódy", "Árvíztűrő tükörfúrógép", "Flygande bäckasiner söka hwila på mjuka tuvor",
    "Quizdeltagerne spiste jordbær med fløde", "Hæ, kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa", "Pijamalı hasta yağız şoföre çabucak güvendi",
    "İSTANBUL Iğdır ıI iİ", "Įlinkdama fechtuotojo špaga sublykčiojusi", "Glāžšķūņa rūķīši dzērumā čiepj Baha", "Do bạch kim rất quý nên sẽ dùng để lắp vô xương",
    "Съешь ещё этих мягких французских булок, да выпей чаю. ЁЖ й Й", "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п’яне знаємо.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία", "ΟΔΥΣΣΕΥΣ ΣΟΦΟΣ Σ ΑΣ.Β ΑΣ. ΑΣ'Β ΑΣ-Β Σ.Σ αΣ\u0301 Σ\u0301α", "ὈΔΥΣΣΕΎΣ ᾼ ᾳ ᾏ ῼ ; · \u037e \u0387 \u1fef",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה", "שָׁלוֹם עֲלֵיכֶם־נָא׃", "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ، نص حكيم ١٢٣؟", "مرحبا\u200fبالعالم \u202bRTL\u202c",
    "یک متن فارسی با نیم‌فاصله می‌شود۔", "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा। क़ ड़", "ক্ষুদ্র বাংলা লেখা। য়", "யாமறிந்த மொழிகளிலே தமிழ்மொழி", "ఆంధ్ర తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า น้ำ", "ພາສາລາວ ဗမာစာ ភាសាខ្មែរ བོད་ཡིག་ལ།", "თბილისი ᲗᲑᲘᲚᲘᲡᲘ Ⴀ ⴀ", "Բարև աշխարհ։ ԵՎ և", "ሰላም ልዑል።", "ᏣᎳᎩ ꭰ Ꭰ ᐃᓄᒃᑎᑐᑦ",
    "我能吞下玻璃而不伤身体。你好，世界！", "我能吞下玻璃而不傷身體（繁體）", "私はガラスを食べられます。カタカナ ｶﾞ ガ か\u3099", "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요", "한글\u1112\u1161\u11ab 각", "가각힣",
    "漢字kanji混じりtext文", "\uf900 \ufa30 \U0002f800 \U00020000 \U0002a700 \U0002b740 \U0002b820 \U0002ceb0 〇 々 㐀 豈", "第１２３回　全角ＡＢＣ！＂＃",
    "Ångström Å \u212b \u212a Ω \u2126", "ﬁ ﬂ ﬀ ŉ ǆ ǅ Ǆ ǰ ẖ", "e\u0301 e\u0301\u0301 \u0301 n\u0303o o\u0308\u0304", "\u0301\u0302 \u0300 a \u20dd b\u20dd", "Z̶͑ͅa̷̎l̸͝g̵̈o̷͠",
    "½ ² Ⅷ ① ٣ 一 Ⓐ ⅷ", "😀 👩‍👩‍👧‍👦 👍🏽 🇫🇷 ❤️ a😀b", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐍉 𝟘𝟙 𐐀𐐨 𐐁 𞤀𞤢", "ꙮ ꜳ Ꜳ Ɪ ꞓ Ᶎ",
    "a\x00b a\x01b \x7f a\x7fb", "tab\tnew\nline\rreturn\x0bvt\x0cff", "\x1c\x1d\x1e\x1fa\x1cb", "a\u0085b", "a\u00a0b\u1680c\u2000d\u2009e\u202ff\u205fg\u3000h",
    "a\u2028b\u2029c", "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg", "a\u180eb", "a\ufffdb \ufffd", "\ue000a \uf8ffb \U000f0000c \U0010ffffd \uffffe \ufdd0f", "\u0378a \U0001fffeb",
    "\u061c\u200e\u200f\u202a\u2066x\u2069", "!\u00a1\u00bf\u2010\u2014\u2018\u2026\u2030\u203b\u2047\u3001\u3002\uff01\uff5e\u30fb\u00b7\u055a\u0964\u104a\u1361\u166d\u17d4\u1800\u2cf9\ua4fe\ua60d",
    "\u00a6\u00a7\u00a9\u00ac\u00ae\u00b0\u00b1\u00b4\u00b6\u00b8\u00d7\u00f7\u02c6\u02d8\u2044\u2122\u2190\u2200\u2500\u25a0\u2605\u2713", "_snake_case_ __init__ CamelCase kebab-case",
    "\U000e0001\U000e0061x", "a\u034fb \u17b4x \u115fx \u3164x \uffa0x", "\u1e9e\u00df \u1fb3\u1fbc \u03f4\u03b8 \u1e9b \u017f", "\u0345 \u0399\u0345 \u0391\u0345", "\u0130 i\u0307 I\u0307 \u0049\u0307\u0323",
]


def random_texts(count):
    """Random texts with characters that Unicode 3.2 had, of the same category as today: every version agrees on them."""
    draw = random.Random(1234)
    known = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000
             and unicodedata.ucd_3_2_0.category(chr(c)) == unicodedata.category(chr(c)) != "Cn"]
    other = [c for c in known if not reference.is_cjk(ord(c)) and not "\uac00" <= c < "\ud7a4"]
    marks = [c for c in known if unicodedata.category(c) in ("Mn", "Mc", "Me", "Cf", "Zs", "Pd", "Po")]
    for _ in range(count):
        sources = draw.sample([list("the quick STREM'vld "), list("aÀé1²,— \n"), marks, known, other, other], draw.randint(1, 4))
        yield "".join(draw.choice(draw.choice(sources)) for _ in range(draw.randint(1, 40)))


def keep(piece, share):
    """A decision for `share` in a hundred pieces, by their text."""
    return zlib.crc32(piece.encode()) % 100 < share


def main():
    texts = TEXTS + list(random_texts(200))
    found = set()
    for text in texts:
        for word in reference.words(text, True) + reference.words(text, False):
            for begin in range(min(len(word), 20)):
                for end in range(begin + 1, min(len(word), begin + 8) + 1):
                    piece = ("##" if begin else "") + word[begin:end]
                    if keep(piece, 93 if end == begin + 1 else 12 if word.isascii() else 2):
                        found.add(piece)
    tokens = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + sorted(found)
    with open("vocab.txt", "w", encoding="utf-8", newline="\n") as file:
        file.write("".join(token + "\n" for token in tokens))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    with open("golden.json", "w", encoding="ascii") as file:
        json.dump([{"text": text, "cased": reference.encode(text, vocabulary, False),
                    "uncased": reference.encode(text, vocabulary, True)} for text in texts],
                  file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
