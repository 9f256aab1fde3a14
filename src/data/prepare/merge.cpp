#include "data/prepare/merge.hpp"

#include <algorithm>
#include <memory>

#include "core/error.hpp"
#include "data/indexed_dataset.hpp"
#include "data/token_scan.hpp"
#include "tokenizer/preprocess/dataset.hpp"

namespace trireme::data {
namespace {

// Also where one of them is a link or has another spelling.
bool same_dataset(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code absent;
  return std::filesystem::equivalent(a.string() + ".idx", b.string() + ".idx", absent) ||
         std::filesystem::equivalent(a.string() + ".bin", b.string() + ".bin", absent);
}

void check_input(const IndexedDataset& dataset, const IndexedDataset& first,
                 const std::filesystem::path& output) {
  if (same_dataset(dataset.prefix(), output))
    throw UsageError("the output '{}' is one of the inputs; name another", output.string());
  if (dataset.type() != first.type())
    throw DataError("'{}' holds {}, '{}' holds {}: datasets of one type can be merged",
                    dataset.prefix().string(), name_of(dataset.type()), first.prefix().string(),
                    name_of(first.type()));
  if (dataset.has_modes())
    throw DataError("'{}' has the modes of a multimodal dataset, which a merge would lose",
                    dataset.prefix().string());
}

void append(const IndexedDataset& dataset, tokenizer::DatasetWriter& writer) {
  std::vector<std::byte> elements;
  for (std::int64_t document = 0; document < dataset.documents(); ++document) {
    for (std::int64_t sequence = dataset.first_sequence(document);
         sequence < dataset.first_sequence(document + 1); ++sequence) {
      elements.resize(dataset.length(sequence) * size_of(dataset.type()));
      dataset.read_elements(dataset.first_token(sequence), elements);
      writer.add_elements(elements);
    }
    writer.end_document();
  }
}

/// What the inputs' records say of all together; nothing where one has none.
class MergedInfo {
 public:
  void add(const IndexedDataset& dataset) {
    const auto info = read_dataset_info(dataset);
    if (!info) {
      if (!without_) without_ = dataset.prefix();
      return;
    }
    if (!merged_) {
      merged_ = info;
      first_ = dataset.prefix();
      return;
    }
    if (!merged_->tokenizer.same_ids(info->tokenizer))
      throw DataError("'{}' holds ids of {}, '{}' of {}: datasets of one tokenizer can be merged",
                      dataset.prefix().string(), tokenizer::to_text(info->tokenizer),
                      first_.string(), tokenizer::to_text(merged_->tokenizer));
    if (merged_->tokenizer.library != info->tokenizer.library) merged_->tokenizer.library.clear();
    if (merged_->options != info->options) merged_->options.reset();
    merged_->largest_id = std::max(merged_->largest_id, info->largest_id);
    merged_->documents += info->documents;
    merged_->tokens += info->tokens;
  }

  std::optional<tokenizer::DatasetInfo> info() const { return without_ ? std::nullopt : merged_; }
  /// The first input without a record, where others have one.
  std::optional<std::filesystem::path> without() const { return merged_ ? without_ : std::nullopt; }

 private:
  std::optional<tokenizer::DatasetInfo> merged_;
  std::filesystem::path first_;  ///< the input that merged_ began with
  std::optional<std::filesystem::path> without_;
};

}  // namespace

MergeSummary merge_datasets(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output) {
  if (inputs.empty()) throw UsageError("name the datasets to merge");
  const std::filesystem::path target = dataset_prefix(output);
  if (const auto name = target.filename(); name.empty() || name == "." || name == "..")
    throw UsageError("the output '{}' is a folder; name a dataset in it, such as '{}'",
                     output.string(), (target / "merged").string());
  std::vector<std::unique_ptr<const IndexedDataset>> datasets;
  MergedInfo info;
  for (const std::filesystem::path& input : inputs) {
    datasets.push_back(std::make_unique<const IndexedDataset>(dataset_prefix(input)));
    check_input(*datasets.back(), *datasets.front(), target);
    info.add(*datasets.back());
  }
  const TokenType type = datasets.front()->type();
  tokenizer::DatasetWriter writer(target, {static_cast<std::uint8_t>(type), size_of(type)});
  MergeSummary summary{.without_info = info.without()};
  for (const auto& dataset : datasets) {
    append(*dataset, writer);
    summary.documents += dataset->documents();
    summary.sequences += dataset->sequences();
    summary.tokens += dataset->tokens();
  }
  writer.finish(info.info());
  return summary;
}

}  // namespace trireme::data
