#!/usr/bin/env bash
# Checks the format and the scripts, builds everything with warnings as errors, runs all tests but those
# labelled slow, and runs the unit tests again under the address and undefined-behaviour sanitizers.
#
#   jobs/local/test.sh
set -euo pipefail
if [ $# -gt 0 ]; then
  echo "test.sh: '$1': it takes no arguments; ctest --preset ci -R NAME runs one test" >&2
  exit 2
fi
# shellcheck source=jobs/local/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_format() {
  find src apps tests \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 clang-format-14 --dry-run --Werror
}

check_scripts() {
  find cmake jobs tests .ci \( -name '*.sh' -o -name '*.sbatch' -o -name profile -o -path .ci/run \) -print0 |
    xargs -0 shellcheck --external-sources
}

build_ci() {
  cmake --preset ci -Wno-dev >build/ci-configure.log || { cat build/ci-configure.log && return 1; }
  build ci
}

# Many tests wait for ranks, files and time-outs: three of them keep two cores busy.
run_tests() {
  ctest --preset ci --parallel $(($(nproc) * 3 / 2))
}

run_unit_tests_sanitized() {
  cmake --preset asan >build/asan-configure.log || { cat build/asan-configure.log && return 1; }
  build asan unit_tests
  ctest --preset asan --label-regex '^unit$' --parallel "$(nproc)"
}

mkdir -p build
stage "installing what is missing" cmake/dependencies.sh --with-tests
stage "checking the format" check_format
stage "checking the scripts" check_scripts
stage "building" build_ci
stage "testing" run_tests
stage "testing under the sanitizers" run_unit_tests_sanitized
printf '\n%s: everything passed in %d s\n' "$program" "$SECONDS"
