#!/bin/sh
# Runs nvcc with -Xptxas=-v, and keeps what ptxas says of each kernel (registers, spills, what it could not
# do) next to the object, as OBJECT.ptxas, instead of printing it. Everything else is printed.
#
#   cmake/keep_ptxas_report.sh NVCC... -o OBJECT ...
set -eu
object=
previous=
for word; do
  if [ "$previous" = -o ]; then
    object=$word
  fi
  previous=$word
done
output=$object.output
trap 'rm -f "$output"' EXIT
code=0
"$@" >"$output" 2>&1 || code=$?
notes='^ptxas info|^ +[0-9]+ bytes stack frame,'
grep -Ev "$notes" "$output" || true
grep -E "$notes" "$output" >"$object.ptxas" || true
exit "$code"
