#include "data/indexed_dataset.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"

namespace trireme::data {
namespace {

constexpr std::array<char, 9> kIndexMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
// Magic 9, version 8, element type 1, number of sequences 8, of document boundaries 8.
constexpr std::uint64_t kIndexHeaderBytes = 34;

struct IndexType {
  TokenType type;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<IndexType, 8> kIndexTypes = {{{TokenType::uint8, "uint8", 1},
                                                   {TokenType::int8, "int8", 1},
                                                   {TokenType::int16, "int16", 2},
                                                   {TokenType::int32, "int32", 4},
                                                   {TokenType::int64, "int64", 8},
                                                   {TokenType::float64, "float64", 8},
                                                   {TokenType::float32, "float32", 4},
                                                   {TokenType::uint16, "uint16", 2}}};

const IndexType& row_of(TokenType type) { return kIndexTypes[static_cast<std::size_t>(type) - 1]; }

std::filesystem::path with_ending(const std::filesystem::path& prefix, const char* ending) {
  return prefix.string() + ending;
}

// Calls `function(T{})` with the C++ type of an element.
template <typename Function>
void dispatch(TokenType type, Function&& function) {
  switch (type) {
    case TokenType::uint8:
      return function(std::uint8_t{});
    case TokenType::int8:
      return function(std::int8_t{});
    case TokenType::int16:
      return function(std::int16_t{});
    case TokenType::int32:
      return function(std::int32_t{});
    case TokenType::int64:
      return function(std::int64_t{});
    case TokenType::float64:
      return function(double{});
    case TokenType::float32:
      return function(float{});
    case TokenType::uint16:
      return function(std::uint16_t{});
  }
}

// Datasets whose names begin like that of `prefix`, as PREFIX_text_document does: at most three.
std::vector<std::string> similar_datasets(const std::filesystem::path& prefix) {
  std::vector<std::string> found;
  const std::string start = prefix.filename().string();
  std::error_code error;
  const auto folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".idx" && path.filename().string().starts_with(start))
      found.push_back((prefix.parent_path() / path.stem()).string());
  }
  std::ranges::sort(found);
  found.resize(std::min<std::size_t>(found.size(), 3));
  return found;
}

// Throws IoError with the datasets that may be meant where there is no PREFIX.idx.
void refuse_absent(const std::filesystem::path& prefix) {
  std::error_code unknown;
  const std::filesystem::path index = with_ending(prefix, ".idx");
  if (std::filesystem::exists(index, unknown) || unknown) return;
  const std::vector<std::string> similar = similar_datasets(prefix);
  if (!similar.empty())
    throw IoError("cannot open '{}': No such file or directory; did you mean '{}'?", index.string(),
                  fmt::join(similar, "' or '"));
}

// Texts and Megatron-LM v0's lazy folders are named where datasets belong.
const std::filesystem::path& checked_prefix(const std::filesystem::path& prefix) {
  std::error_code ignored;
  if (std::filesystem::exists(prefix, ignored) &&
      !std::filesystem::exists(with_ending(prefix, ".idx"), ignored))
    throw DataError(
        "'{}' is not an indexed dataset, which is a pair of files PREFIX.bin and PREFIX.idx; make "
        "one of the text with trireme-preprocess",
        prefix.string());
  refuse_absent(prefix);
  return prefix;
}

// Whether `value` is a token id that Integer holds.
template <typename Integer, typename Element>
bool holds(Element value) {
  if constexpr (std::is_floating_point_v<Element>) {
    // Both bounds are powers of two and so exact.
    constexpr Element kBound = -static_cast<Element>(std::numeric_limits<Integer>::min());
    return value >= -kBound && value < kBound && std::trunc(value) == value;
  } else {
    return std::in_range<Integer>(value);
  }
}

}  // namespace

std::string_view name_of(TokenType type) { return row_of(type).name; }

std::size_t size_of(TokenType type) { return row_of(type).bytes; }

std::filesystem::path dataset_prefix(const std::filesystem::path& path) {
  const std::filesystem::path ending = path.extension();
  if (ending != ".bin" && ending != ".idx") return path;
  return std::filesystem::path(path).replace_extension();
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : prefix_(checked_prefix(prefix)),
      idx_(with_ending(prefix, ".idx")),
      bin_(with_ending(prefix, ".bin")) {
  const std::filesystem::path idx_name = with_ending(prefix, ".idx");
  open_header(idx_name);
  for (std::int64_t sequence = 0; sequence < sequences_; ++sequence)
    tokens_ += std::max(0, length(sequence));
  resolve_type();
  check_sequences(idx_name);
  check_documents(idx_name);
}

void IndexedDataset::open_header(const std::filesystem::path& name) {
  const std::uint64_t size = idx_.size();
  const std::byte* base = idx_.data();
  const std::size_t magic_seen = std::min<std::size_t>(size, kIndexMagic.size());
  if (size > 0 && std::memcmp(base, kIndexMagic.data(), magic_seen) != 0)
    throw DataError("'{}': not an indexed dataset: it does not begin with MMIDIDX", name.string());
  if (size < kIndexHeaderBytes)
    throw DataError("'{}': truncated: the header needs {} bytes, the file has {}", name.string(),
                    kIndexHeaderBytes, size);

  const auto version = load<std::uint64_t>(base + 9);
  if (version != 1)
    throw DataError("'{}': version {} of the format; only version 1 is known", name.string(),
                    version);
  const auto code = load<std::uint8_t>(base + 17);
  if (code < 1 || code > kIndexTypes.size())
    throw DataError("'{}': unknown element type code {}; known are 1 to {}", name.string(), code,
                    kIndexTypes.size());
  type_ = static_cast<TokenType>(code);

  // Counts that the file cannot hold are refused before anything is multiplied.
  const auto sequences = load<std::uint64_t>(base + 18);
  const auto boundaries = load<std::uint64_t>(base + 26);
  if (sequences > std::numeric_limits<std::int32_t>::max() * std::uint64_t{1024} ||
      boundaries > std::numeric_limits<std::int32_t>::max() * std::uint64_t{1024})
    throw DataError(
        "'{}': the header promises {} sequences and {} document boundaries, the file has {} bytes",
        name.string(), sequences, boundaries, size);
  const std::uint64_t promised = kIndexHeaderBytes + 12 * sequences + 8 * boundaries;
  if (size < promised)
    throw DataError("'{}': truncated: the header promises {} bytes, the file has {}", name.string(),
                    promised, size);
  // Multimodal datasets end with one byte per sequence; nothing in the header says so.
  if (size != promised && size != promised + sequences)
    throw DataError(
        "'{}': inconsistent: the header promises {} bytes (or {} with modes), the file has {}",
        name.string(), promised, promised + sequences, size);
  if (boundaries == 0)
    throw DataError("'{}': inconsistent: the list of document boundaries is empty", name.string());

  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(boundaries) - 1;
  lengths_ = base + kIndexHeaderBytes;
  pointers_ = lengths_ + 4 * sequences;
  first_sequences_ = pointers_ + 8 * sequences;
}

void IndexedDataset::resolve_type() {
  const auto bytes = static_cast<std::int64_t>(bin_.size());
  if (type_ == TokenType::float32 && bytes > 0 && bytes / 8 == tokens_ && bytes % 8 == 0)
    type_ = TokenType::float64;
}

void IndexedDataset::check_sequences(const std::filesystem::path& name) const {
  const auto item = static_cast<std::int64_t>(size_of(type_));
  const auto bytes = static_cast<std::int64_t>(bin_.size());
  // The position stays below bin_.size() + 2^34 until the first fault, so nothing overflows.
  std::int64_t position = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const std::int64_t tokens = length(i);
    const auto pointer = load<std::int64_t>(pointers_ + 8 * i);
    if (tokens < 0) [[unlikely]]
      throw DataError("'{}': inconsistent: sequence {} has length {}", name.string(), i, tokens);
    if (pointer != position) [[unlikely]]
      throw DataError(
          "'{}': inconsistent: sequence {} is said to begin at byte {}, the lengths before it give "
          "{}",
          name.string(), i, pointer, position);
    position += tokens * item;
    if (position > bytes) [[unlikely]]
      throw DataError("'{}': truncated: sequence {} of {} ends at byte {}, the file has {}",
                      with_ending(prefix_, ".bin").string(), i, sequences_, position, bytes);
  }
  if (position != bytes)
    throw DataError(
        "'{}': inconsistent: the index promises {} bytes ({} {} tokens), the file has {}",
        with_ending(prefix_, ".bin").string(), position, tokens_, name_of(type_), bytes);
}

void IndexedDataset::check_documents(const std::filesystem::path& name) const {
  if (first_sequence(0) != 0)
    throw DataError("'{}': inconsistent: the first document begins at sequence {} instead of 0",
                    name.string(), first_sequence(0));
  std::int64_t previous = 0;
  for (std::int64_t document = 1; document <= documents_; ++document) {
    const std::int64_t first = first_sequence(document);
    if (first < previous) [[unlikely]]
      throw DataError(
          "'{}': inconsistent: document boundary {} is {}, less than the one before, {}",
          name.string(), document, first, previous);
    previous = first;
  }
  if (previous != sequences_)
    throw DataError(
        "'{}': inconsistent: the documents end at sequence {}, but there are {} sequences",
        name.string(), previous, sequences_);
}

std::vector<std::int32_t> IndexedDataset::lengths() const {
  std::vector<std::int32_t> copy(static_cast<std::size_t>(sequences_));
  if (!copy.empty()) std::memcpy(copy.data(), lengths_, copy.size() * sizeof(std::int32_t));
  return copy;
}

std::int64_t IndexedDataset::document_of(std::int64_t sequence) const {
  TRIREME_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  // The last document that begins at or before `sequence`; empty documents share a beginning.
  std::int64_t low = 0, high = documents_;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (first_sequence(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

template <typename Integer>
void IndexedDataset::read(std::int64_t sequence, std::int64_t offset,
                          std::span<Integer> tokens) const {
  TRIREME_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  TRIREME_CHECK(offset >= 0 && offset + std::ssize(tokens) <= length(sequence),
                "tokens {}..{} of a sequence of {}", offset, offset + std::ssize(tokens),
                length(sequence));
  // Samples are short: mostly the bytes need no memory from the heap.
  std::array<std::byte, 16384> small;
  std::vector<std::byte> large;
  const std::size_t bytes = tokens.size() * size_of(type_);
  std::span<std::byte> elements(small.data(), std::min(bytes, small.size()));
  if (bytes > small.size()) {
    large.resize(bytes);
    elements = large;
  }
  read_elements(first_token(sequence) + offset, elements);
  convert(elements, tokens, [&](std::size_t i) {
    return fmt::format("sequence {}, token {}", sequence, offset + static_cast<std::int64_t>(i));
  });
}

void IndexedDataset::read_elements(std::int64_t first, std::span<std::byte> elements) const {
  bin_.read(static_cast<std::size_t>(first) * size_of(type_), elements.data(), elements.size());
}

void IndexedDataset::read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const {
  TRIREME_CHECK(first >= 0 && first + std::ssize(tokens) <= tokens_, "tokens {} to {} of {}", first,
                first + std::ssize(tokens), tokens_);
  std::vector<std::byte> elements(tokens.size() * size_of(type_));
  read_elements(first, elements);
  convert(std::span<const std::byte>(elements), tokens, [&](std::size_t i) {
    return fmt::format("token {} of the file", first + static_cast<std::int64_t>(i));
  });
}

template <typename Integer, typename Place>
void IndexedDataset::convert(std::span<const std::byte> elements, std::span<Integer> tokens,
                             Place&& place) const {
  dispatch(type_, [&]<typename Element>(Element) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto value = load<Element>(elements.data() + i * sizeof(Element));
      if (!holds<Integer>(value)) [[unlikely]]
        throw DataError("'{}': {} in {}, is not a token id of {} bits",
                        with_ending(prefix_, ".bin").string(), value, place(i),
                        8 * sizeof(Integer));
      tokens[i] = static_cast<Integer>(value);
    }
  });
}

template void IndexedDataset::read(std::int64_t, std::int64_t, std::span<std::int32_t>) const;
template void IndexedDataset::read(std::int64_t, std::int64_t, std::span<std::int64_t>) const;

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
        "belongs to another one; delete it, or make the dataset again with trireme-preprocess",
        tokenizer::info_path(dataset.prefix()).string(), info->documents, info->tokens,
        dataset.prefix().string(), dataset.documents(), dataset.tokens());
  return info;
}

}  // namespace trireme::data
