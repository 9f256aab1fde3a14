// Microbenchmarks of what happens before training: tokenizing and building sample indices.
// Run test_micro_bench; CTest (label bench) only sees that each benchmark runs.
#include <benchmark/benchmark.h>

#include <string>

#include "core/files.hpp"
#include "core/philox.hpp"
#include "data/bert/sample.hpp"
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

/// Masked samples of BERT, of two full segments: Megatron-LM's n-grams of whole words.
void mask_samples(benchmark::State& state) {
  const std::int64_t sequence = state.range(0);
  constexpr std::int64_t kIds = 30522;
  data::BertVocabulary vocabulary{.cls = 1, .sep = 2, .mask = 3, .pad = 0};
  for (std::int64_t id = 0; id < kIds; ++id) vocabulary.continues_word.push_back(id % 4 == 0);
  const data::BertFormat format{
      .sequence = sequence,
      .vocabulary = std::make_shared<const data::BertVocabulary>(std::move(vocabulary))};
  data::SegmentPair pair;
  for (std::int64_t i = 0; i < sequence - 3; ++i)
    (i % 2 == 0 ? pair.a : pair.b)
        .push_back(10 + static_cast<std::int32_t>(philox_uniform(2, 0, i) * (kIds - 10)));
  std::vector<std::vector<std::int32_t>> values(
      5, std::vector<std::int32_t>(static_cast<std::size_t>(sequence)));
  std::vector<std::span<std::int32_t>> tensors(values.begin(), values.end());
  tensors[3] = tensors[3].first(1);
  tensors[4] = tensors[4].first(1);
  data::BertSample sample(tensors);
  std::uint32_t seed = 0;
  for (auto _ : state) {
    data::join_segments(pair, format, sample);
    data::NumpyRandom random(++seed);
    data::mask_ngrams(format, sequence - 3, random, sample);
    benchmark::DoNotOptimize(values.data());
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(mask_samples)->Arg(128)->Arg(512)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
