#!/usr/bin/env python3
"""Compares golden.json with the BertTokenizer of Hugging Face's transformers, offline: `python3 check_transformers.py`.

Exits with 1 when a line differs and none of the known differences of that version of transformers explains it:
  nfc       the slow tokenizer of transformers >= 4.30 composes characters first; Google's and the fast one do not
  sigma     transformers lower-cases each character alone; Google's gives words a final sigma
  special   transformers takes the names of special tokens in a text as tokens; here they are text
  version   Python's unicodedata, or the tables of the fast tokenizer, have other categories for a character
"""
import json
import os
import sys
import unicodedata

import transformers

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")


def tokenizers():
    """The tokenizers of this version by name, for `lowercase` and cased text."""
    for lowercase in (False, True):
        for name in ("BertTokenizer", "BertTokenizerFast", "BertTokenizerLegacy"):
            kind = getattr(transformers, name, None)
            if kind:
                yield name, lowercase, kind(os.path.join(HERE, "vocab.txt"), do_lower_case=lowercase)


def explanation(text, lowercase, fast):
    if any(name in text for name in SPECIAL):
        return "special"
    if not fast and not unicodedata.is_normalized("NFC", reference.clean(text)):
        return "nfc"
    if lowercase and "Σ" in text:
        return "sigma"
    # Categories that the tables of the tokenizers library (of Unicode 8) and unicodedata tell apart.
    if fast and any(unicodedata.ucd_3_2_0.category(c) != unicodedata.category(c)
                    or unicodedata.category(c)[0] == "C" for c in text):
        return "version"
    return None


def main():
    with open(os.path.join(HERE, "golden.json"), encoding="ascii") as file:
        golden = json.load(file)
    print(f"transformers {transformers.__version__}, unicodedata {unicodedata.unidata_version}")
    failed = False
    for name, lowercase, tokenizer in tokenizers():
        fast = getattr(tokenizer, "is_fast", False)
        equal, explained, bad = 0, {}, []
        for entry in golden:
            expected = entry["uncased" if lowercase else "cased"]
            got = tokenizer.encode(entry["text"], add_special_tokens=False)
            reason = explanation(entry["text"], lowercase, fast)
            if got == expected:
                equal += 1
            elif reason:
                explained[reason] = explained.get(reason, 0) + 1
            else:
                bad.append((entry["text"], expected, got))
        print(f"{name} ({'fast' if fast else 'slow'}), {'uncased' if lowercase else 'cased'}: {equal} of {len(golden)} "
              f"lines equal; explained: {explained}; not explained: {len(bad)}")
        for text, expected, got in bad[:10]:
            print(f"  {text!a}\n    expected {expected}\n    got      {got}")
        failed = failed or bool(bad)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
