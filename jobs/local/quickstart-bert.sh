#!/usr/bin/env bash
# BERT on the text of jobs/local/quickstart.sh, which makes the programs and the text and must have run
# before: makes a vocabulary and a dataset of sentence parts, pretrains inputs/quickstart-bert.yaml on 2
# MPI ranks, evaluates. A second call does only what is missing or out of date.
set -euo pipefail
# shellcheck source=jobs/local/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly deck=inputs/quickstart-bert.yaml data=data/quickstart run=runs/quickstart-bert
readonly programs=build/release/bin corpus=$data/corpus.txt vocab=$data/vocab.txt verses=$data/verses
readonly metrics=$run/metrics.jsonl

# The documents are the text's sentences that have a colon or a semicolon, and their sentences the parts
# between these: short enough that a small model learns which of two parts comes first.
make_dataset() {
  if ! up_to_date "$vocab" "$corpus"; then
    "$programs/trireme-tokenizer" train --type wordpiece --lowercase true --input "$corpus" --output "$vocab" --size 2048
  fi
  if ! up_to_date "${verses}_text_sentence.idx" "$corpus" "$vocab"; then
    sed 's/[.?!] */.\n/g' "$corpus" | grep '[:;] ' |
      sed 's/[:;] */&\\n/g; s/.*/{"text": "&"}/' >"$verses.jsonl"
    "$programs/trireme-preprocess" --input "$verses.jsonl" --output "$verses" --tokenizer wordpiece \
      --vocab "$vocab" --lowercase true --presplit-sentences
  fi
}

pretrain() {
  if up_to_date "$metrics" "$deck" "${verses}_text_sentence.idx" &&
    tail -n 1 "$metrics" | grep -q '"reason":"finished"'; then
    echo "$run has finished before"
    return
  fi
  mpirun --quiet -n 2 --oversubscribe --bind-to none "$programs/trireme-pretrain" "$deck"
}

evaluate() {
  "$programs/trireme-evaluate" "$deck" --split valid
  "$programs/trireme-evaluate" "$deck" --task ngram
}

if ! [ -e "$corpus" ] || ! [ -x "$programs/trireme-evaluate" ]; then
  refuse "run jobs/local/quickstart.sh first: it makes the programs and $corpus"
fi
stage "making vocabulary and dataset" make_dataset
stage "pretraining" pretrain
stage "evaluating" evaluate
