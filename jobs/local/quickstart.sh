#!/usr/bin/env bash
# From a fresh system to generated text: installs missing packages, builds the programs, makes a corpus,
# a tokenizer and a dataset, pretrains inputs/quickstart.yaml on 4 MPI ranks, evaluates, generates.
# A second call does only what is missing or out of date: it resumes a stopped training run and uses an
# edited deck or corpus.
#
#   jobs/local/quickstart.sh              the King James Bible, from Debian's bible-kjv
#   CORPUS=FILE jobs/local/quickstart.sh  your text: *.txt has a document per line, other files are JSON
#                                         lines with the key "text"; both may be gzipped (.gz)
#   jobs/local/quickstart.sh --cuda       compile the CUDA backend although no GPU is found here
#
# Where there is no GPU it compiles no CUDA, which takes most of the time, even if nvcc is there.
set -euo pipefail
cuda=auto
case ${1:-} in
  "") ;;
  --cuda) cuda=ON ;;
  *)
    echo "quickstart.sh: unknown option '$1': only --cuda" >&2
    exit 2
    ;;
esac
corpus=${CORPUS:+$(realpath -- "$CORPUS")}
# shellcheck source=jobs/local/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly deck=inputs/quickstart.yaml ranks=4 vocabulary=2048
readonly programs=build/release/bin

# The folders. The deck names those of the Bible; another corpus gets its own.
if [ -z "$corpus" ]; then
  data=data/quickstart run=runs/quickstart overrides=()
  corpus=$data/corpus.txt prompt="And it came to pass"
else
  [ -r "$corpus" ] || refuse "CORPUS=$CORPUS cannot be read"
  name=$(basename "$corpus" | sed 's/\.gz$//; s/\.[^.]*$//; s/[^A-Za-z0-9_-]/_/g')
  data=data/quickstart-$name run=runs/quickstart-$name prompt=""
  overrides=("run.output=$run" "data.train=$data/corpus_text_document"
    "data.tokenizer.model=$data/tokenizer.model")
fi
readonly data run corpus prompt model=$data/tokenizer.model dataset=$data/corpus_text_document
readonly metrics=$run/metrics.jsonl latest=$run/checkpoints/latest

install_packages() {
  if [ -n "${CORPUS:-}" ]; then cmake/dependencies.sh; else cmake/dependencies.sh --with-corpus; fi
}

# has_gpu: whether this machine has an NVIDIA GPU; nvcc is also on machines without.
has_gpu() {
  [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1
}

# A fresh build folder is configured without tests; an existing one is used as it is. The programs up
# to the first loss come first.
build_programs() {
  mkdir -p build
  if [ ! -e build/release/build.ninja ]; then
    if [ "$cuda" = auto ]; then if has_gpu; then cuda=AUTO; else cuda=OFF; fi; fi
    if [ "$cuda" = OFF ]; then echo "no NVIDIA GPU: no CUDA is compiled (--cuda compiles it)"; fi
    cmake --preset release -DTRIREME_TESTS=OFF -DTRIREME_CUDA="$cuda" -Wno-dev | sed -n '/^-- Trireme/,$p'
  fi
  build release trireme-tokenizer trireme-preprocess trireme-pretrain
}

build_other_programs() { build release; }

# Writes a chapter per line, without verse marks ("Ge1:1 In the beginning"). bible also prints prompts,
# which have no such mark, and the first verse twice. The chapters are shuffled, the same way every time,
# so that training and validation text are alike.
make_bible() {
  if [ -e "$corpus" ]; then return; fi
  echo gen1:1-rev22:21 | bible -f |
    grep -E '^[1-9]?[A-Z][A-Za-z]*[0-9]+:[0-9]+ ' |
    awk '{ verse = chapter = $1; sub(/:.*/, "", chapter); sub(/^[^ ]* /, "") }
         verse == last_verse { next }
         { printf "%s%s", (NR == 1 ? "" : chapter == last_chapter ? " " : "\n"), $0 }
         { last_verse = verse; last_chapter = chapter }
         END { print "" }' >"$corpus.chapters"
  [ "$(wc -l <"$corpus.chapters")" -eq 1189 ] ||
    refuse "bible printed $(wc -l <"$corpus.chapters") chapters, not the 1189 there are"
  shuf --random-source="$corpus.chapters" "$corpus.chapters" >"$corpus.shuffled"
  mv "$corpus.shuffled" "$corpus"
  rm "$corpus.chapters"
  echo "$corpus: $(wc -l <"$corpus") chapters, $(wc -c <"$corpus") bytes"
}

# The tokenizer is trained on the validation documents, too: it learns word pieces, not what follows.
make_dataset() {
  if ! up_to_date "$model" "$corpus"; then
    "$programs/trireme-tokenizer" train --input "$corpus" --output "$model" --size "$vocabulary"
  fi
  if ! up_to_date "$dataset.idx" "$corpus" "$model"; then
    "$programs/trireme-preprocess" --input "$corpus" --output "$data/corpus" \
      --tokenizer sentencepiece --model "$model" --append-eod
  fi
}

trireme_mpi() {
  mpirun --quiet -n "$ranks" --oversubscribe --bind-to none "$@"
}

# Skips a run that has finished after deck and dataset were last changed.
pretrain() {
  if [ -e "$metrics" ] && [ "$dataset.idx" -nt "$run/deck.yaml" ]; then
    refuse "$run was trained on an older $dataset: move it away to train again"
  fi
  if up_to_date "$metrics" "$deck" && tail -n 1 "$metrics" | grep -q '"reason":"finished"'; then
    echo "$run has finished before"
    return
  fi
  local code=0
  trireme_mpi "$programs/trireme-pretrain" "$deck" "${overrides[@]}" || code=$?
  if [ $code -eq 75 ]; then refuse "stopped early, with a checkpoint: run this again to resume" 75; fi
  return $code
}

evaluate() {
  if ! up_to_date "$run/evaluation.txt" "$latest"; then
    trireme_mpi "$programs/trireme-evaluate" "$deck" "${overrides[@]}" --task perplexity \
      --split valid >"$run/evaluation.tmp"
    "$programs/trireme-evaluate" "$deck" "${overrides[@]}" --task ngram \
      --split valid >>"$run/evaluation.tmp"
    mv "$run/evaluation.tmp" "$run/evaluation.txt"
  fi
  cat "$run/evaluation.txt"
}

generate() {
  if ! up_to_date "$run/sample.txt" "$latest"; then
    "$programs/trireme-generate" --checkpoint "$run" --device host --prompt "$prompt" --tokens 100 \
      --temperature 0.8 --top-p 0.9 --seed 1 >"$run/sample.tmp"
    mv "$run/sample.tmp" "$run/sample.txt"
  fi
  cat "$run/sample.txt"
}

# losses_of_training: prints the first and the last training loss of the run.
losses_of_training() {
  sed -n 's/^{"kind":"train".*"iteration":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$metrics" |
    awk 'NR == 1 { printf "%.3f in iterations 1-%d, ", $2, $1; every = $1 }
         { iteration = $1; loss = $2 }
         END { printf "%.3f in iterations %d-%d\n", loss, iteration - every + 1, iteration }'
}

# evaluated KEY: prints a number of evaluation.txt, rounded.
evaluated() {
  awk -v key="$1" '$1 == key && $2 ~ /^[0-9.]+$/ { value = $2 } END { printf "%.3f", value }' "$run/evaluation.txt"
}

summarize() {
  local continuation
  continuation=$(sed -n 's/^continue  *//p' "$run/console.log" | tail -n 1)
  cat <<SUMMARY

What was done, in $SECONDS s:
training loss    $(losses_of_training)
held-out text    loss $(evaluated loss), perplexity $(evaluated perplexity)
to compare       counted on the training text: unigram $(evaluated unigram), bigram $(evaluated bigram);
                 knowing nothing: $(awk "BEGIN { printf \"%.3f\", log($vocabulary) }")
sample           $run/sample.txt
checkpoint       $run/checkpoints/$(cat "$latest")
continue it      $continuation
SUMMARY
}

mkdir -p "$data" runs
stage "installing what is missing" install_packages
stage "building" build_programs
if [ -z "${CORPUS:-}" ]; then stage "making the corpus" make_bible; fi
stage "making tokenizer and dataset" make_dataset
stage "pretraining" pretrain
stage "building the other programs" build_other_programs
stage "evaluating" evaluate
stage "generating" generate
summarize
