#include "data/prepare/merge.hpp"

#include <memory>

#include "core/error.hpp"
#include "data/indexed_dataset.hpp"
#include "tokenizer/preprocess/dataset_writer.hpp"

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
  std::span<const std::byte> rest = dataset.elements();
  for (std::int64_t document = 0; document < dataset.documents(); ++document) {
    for (std::int64_t sequence = dataset.first_sequence(document);
         sequence < dataset.first_sequence(document + 1); ++sequence) {
      const std::size_t bytes = dataset.length(sequence) * size_of(dataset.type());
      writer.add_elements(rest.first(bytes));
      rest = rest.subspan(bytes);
    }
    writer.end_document();
  }
}

}  // namespace

MergeSummary merge_datasets(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output) {
  if (inputs.empty()) throw UsageError("name the datasets to merge");
  const std::filesystem::path target = dataset_prefix(output);
  if (const auto name = target.filename(); name.empty() || name == "." || name == "..")
    throw UsageError("the output '{}' is a folder; name a dataset in it, such as '{}'",
                     output.string(), (target / "merged").string());
  std::vector<std::unique_ptr<const IndexedDataset>> datasets;
  for (const std::filesystem::path& input : inputs) {
    datasets.push_back(std::make_unique<const IndexedDataset>(dataset_prefix(input)));
    check_input(*datasets.back(), *datasets.front(), target);
  }
  const TokenType type = datasets.front()->type();
  tokenizer::DatasetWriter writer(target, {static_cast<std::uint8_t>(type), size_of(type)});
  MergeSummary summary;
  for (const auto& dataset : datasets) {
    append(*dataset, writer);
    summary.documents += dataset->documents();
    summary.sequences += dataset->sequences();
    summary.tokens += dataset->tokens();
  }
  writer.finish();
  return summary;
}

}  // namespace trireme::data
