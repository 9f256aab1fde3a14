#include "data/token_scan.hpp"

#include <algorithm>
#include <vector>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t kBlocks = 128, kBlockTokens = 8192;

/// Calls `visit(first, count)` for blocks of the dataset's tokens [begin, end), in order.
template <typename Visit>
void for_each_block(const IndexedDataset& dataset, std::int64_t begin, std::int64_t end,
                    TokenScan scan, std::FILE* progress, Visit&& visit) {
  const std::int64_t tokens = end - begin;
  if (scan == TokenScan::all || tokens <= kBlocks * kBlockTokens) {
    Progress meter("checking '" + dataset.prefix().string() + "'", "token",
                   static_cast<double>(tokens), progress);
    for (std::int64_t first = begin; first < end; first += kBlockTokens) {
      visit(first, std::min(kBlockTokens, end - first));
      meter.update(static_cast<double>(first - begin));
    }
    return;
  }
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    const double place = static_cast<double>(block) / static_cast<double>(kBlocks - 1);
    const auto offset =
        static_cast<std::int64_t>(place * static_cast<double>(tokens - kBlockTokens));
    visit(begin + offset, kBlockTokens);
  }
}

}  // namespace

IdRange scan_ids(const IndexedDataset& dataset, TokenScan scan, std::FILE* progress) {
  IdRange range;
  std::vector<std::int64_t> tokens;
  for_each_block(
      dataset, 0, dataset.tokens(), scan, progress, [&](std::int64_t first, std::int64_t count) {
        tokens.resize(static_cast<std::size_t>(count));
        dataset.read_tokens(first, std::span(tokens));
        const auto [smallest, largest] = std::ranges::minmax(tokens);
        range.smallest = range.tokens == 0 ? smallest : std::min(range.smallest, smallest);
        range.largest = range.tokens == 0 ? largest : std::max(range.largest, largest);
        range.tokens += count;
      });
  return range;
}

std::uint64_t hash_tokens(const IndexedDataset& dataset, SequenceRange sequences, TokenScan scan,
                          std::FILE* progress) {
  ContentHash hash;
  std::vector<std::byte> elements;
  for_each_block(dataset, dataset.first_token(sequences.begin), dataset.first_token(sequences.end),
                 scan, progress, [&](std::int64_t first, std::int64_t count) {
                   elements.resize(static_cast<std::size_t>(count) * size_of(dataset.type()));
                   dataset.read_elements(first, elements);
                   hash.add(elements.data(), elements.size());
                 });
  return hash.value();
}

std::optional<tokenizer::DatasetInfo> read_dataset_info(const IndexedDataset& dataset) {
  auto info = tokenizer::read_dataset_info(dataset.prefix());
  if (!info) return info;
  if (static_cast<std::int64_t>(info->documents) != dataset.documents() ||
      static_cast<std::int64_t>(info->tokens) != dataset.tokens())
    throw DataError(
        "'{}' describes a dataset of {} documents and {} tokens, but '{}' has {} and {}: it "
        "belongs to another one; delete it, or make the dataset anew with trireme-preprocess",
        tokenizer::info_path(dataset.prefix()).string(), info->documents, info->tokens,
        dataset.prefix().string(), dataset.documents(), dataset.tokens());
  return info;
}

}  // namespace trireme::data
