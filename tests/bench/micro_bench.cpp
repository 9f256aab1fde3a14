// Microbenchmarks of what happens before training: tokenizing and building sample indices.
// Run test_micro_bench; CTest (label bench) only sees that each benchmark runs.
#include <benchmark/benchmark.h>

#include <string>

#include "core/files.hpp"
#include "core/philox.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {
namespace {

/// English prose of this repository, repeated to a few megabytes.
const std::string& prose() {
  static const std::string text = [] {
    const std::string license = read_file(TRIREME_SOURCE_DIR "/LICENSE");
    std::string repeated;
    while (repeated.size() < (4u << 20)) repeated += license;
    return repeated;
  }();
  return text;
}

void encode(benchmark::State& state, const tokenizer::TokenizerSpec& spec) {
  const auto tokenizer = tokenizer::make_tokenizer(spec);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->encode(prose()));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(prose().size()));
}

BENCHMARK_CAPTURE(encode, gpt2,
                  tokenizer::TokenizerSpec{
                      .type = "gpt2",
                      .vocab = TRIREME_SOURCE_DIR "/tests/data/gpt2/vocab.json",
                      .merges = TRIREME_SOURCE_DIR "/tests/data/gpt2/merges.txt"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, bytes, tokenizer::TokenizerSpec{.type = "bytes"})
    ->Unit(benchmark::kMillisecond);

/// The three indices of 100 million tokens in `state.range(0)` documents, three epochs.
void build_index(benchmark::State& state) {
  const std::int64_t documents = state.range(0);
  const std::int64_t mean = 100'000'000 / documents;
  std::vector<std::int32_t> lengths(documents);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < documents; ++i)
    tokens += lengths[i] =
        static_cast<std::int32_t>(2.0 * philox_uniform(1, 0, i) * static_cast<double>(mean));
  const std::int64_t sequence = 1024;
  for (auto _ : state)
    benchmark::DoNotOptimize(
        data::build_gpt_index(lengths, {0, documents}, 3 * tokens / sequence - 1, sequence, 1234));
}

BENCHMARK(build_index)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
