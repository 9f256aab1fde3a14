#!/bin/sh
# trireme-inspect on Megatron-LM's files: what it lists, the indices it writes, its errors and codes.
# Usage: inspect_test.sh TRIREME-INSPECT FOLDER-OF-GOLDEN-FILES
set -eu
inspect=$1
golden=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# fails CODE TEXT ARGUMENTS...: the program ends with CODE and says TEXT.
fails() {
    code=$1 text=$2
    shift 2
    found=0
    "$inspect" "$@" 2>"$scratch/error" || found=$?
    if [ "$found" -ne "$code" ] || ! grep -q -- "$text" "$scratch/error"; then
        echo "trireme-inspect $*: expected exit code $code and '$text', got $found and:"
        cat "$scratch/error"
        exit 1
    fi
}

"$inspect" "$golden/a.idx" | grep -q '^  tokens     461$'
"$inspect" "$golden/a" --json | grep -q '"documents": 23,'

# 18 of the 23 documents are the part that the golden indices were made of.
"$inspect" "$golden/a" --index train --sequence 16 --samples 75 --seed 1234 --split 18,3,2 --output "$scratch/new/index"
for part in document sample shuffle; do
    cmp "$golden/gpt_sep_final_${part}_index.npy" "$scratch/new/index/${part}_index.npy"
done

fails 74 "absent.idx': No such file" "$scratch/absent"
head -c 400 "$golden/a.idx" >"$scratch/cut.idx"
cp "$golden/a.bin" "$scratch/cut.bin"
fails 65 "cut.idx': truncated: the header promises 502 bytes, the file has 400" "$scratch/cut"
fails 78 "too small for one sample of 17 tokens" "$golden/a" --index test --sequence 16 --output "$scratch/x" --split 1,0,0
fails 2 "name a checkpoint or a dataset's prefix"
fails 2 "index needs --output" "$golden/a" --index train --sequence 16
fails 2 "seed needs --index" "$golden/a" --seed 3
fails 2 "'dev' is not a part" "$golden/a" --index dev --sequence 16 --output "$scratch/x"
fails 2 "--split 0,0,0: expected weights" "$golden/a" --index train --sequence 16 --output "$scratch/x" --split 0,0,0
fails 2 "weights need --samples" 3 "$golden/a" 1 "$golden/a" --index train --sequence 16 --output "$scratch/x"
fails 2 "--verify has no effect with --index" "$golden/a" --verify --index train --sequence 16 --output "$scratch/x"
fails 2 "--seed -1 is not between 0 and 4294967295" "$golden/a" --index train --sequence 16 --output "$scratch/x" --seed -1

# On a full disk, here one for files of 2 KiB, no part of an index is left.
(
    trap '' XFSZ
    ulimit -f 4
    fails 74 "cannot write '$scratch/full/sample_index.npy" "$golden/a" --index train --sequence 16 --samples 300 --output "$scratch/full"
)
[ -z "$(ls "$scratch/full")" ]
