// Megatron-LM's document, sample and shuffle indices, and the files that keep them.
#include "data/gpt/gpt_dataset.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "data/numpy.hpp"

namespace trireme::data {
namespace {

// Megatron-LM shuffles the last epoch separately when less than this part of it is used.
constexpr double kSeparateBelow = 0.80;

/// Walks the stream of documents from sample to sample.
class SampleWalk {
 public:
  SampleWalk(const NpyArray& document, std::span<const std::int32_t> lengths)
      : document_(document), lengths_(lengths) {}

  // Moves to token `target` of the stream, not before the last one asked for; false when the
  // stream is shorter.
  bool advance_to(std::int64_t target) {
    while (slot_ < document_.rows()) {
      const std::int64_t length = lengths_[static_cast<std::size_t>(document_(slot_))];
      if (target - start_ < length) {
        offset_ = target - start_;
        return true;
      }
      start_ += length;
      ++slot_;
    }
    return false;
  }

  std::int64_t slot() const { return slot_; }
  std::int64_t offset() const { return offset_; }

 private:
  const NpyArray& document_;
  std::span<const std::int32_t> lengths_;
  std::int64_t slot_ = 0, start_ = 0, offset_ = 0;
};

std::vector<std::int32_t> build_document_index(SequenceRange documents, const EpochPlan& plan,
                                               NumpyRandom& random) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(plan.epochs * documents.size()));
  const auto per_epoch = static_cast<std::size_t>(documents.size());
  for (std::size_t first = 0; first < index.size(); first += per_epoch)
    std::iota(index.begin() + first, index.begin() + first + per_epoch,
              static_cast<std::int32_t>(documents.begin));
  const std::span<std::int32_t> all(index);
  const std::size_t together = plan.separate_last_epoch ? index.size() - per_epoch : index.size();
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
  return index;
}

template <typename T>
NpyArray build_shuffle_index(const EpochPlan& plan, NumpyRandom& random) {
  std::vector<T> index(static_cast<std::size_t>(plan.samples));
  std::iota(index.begin(), index.end(), T{0});
  const std::span<T> all(index);
  const auto together = static_cast<std::size_t>(
      plan.separate_last_epoch ? plan.samples_before_last_epoch : plan.samples);
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
  return NpyArray(std::move(index));
}

template <typename T>
NpyArray build_sample_rows(const NpyArray& document, std::span<const std::int32_t> lengths,
                           std::int64_t sequence, std::int64_t samples) {
  std::vector<T> rows(2 * static_cast<std::size_t>(samples + 1));
  SampleWalk walk(document, lengths);
  // Row 0 is (0, 0) even when the stream begins with an empty document.
  for (std::int64_t k = 1; k <= samples; ++k) {
    TRIREME_CHECK(walk.advance_to(k * sequence), "the stream ends before sample {}", k);
    rows[2 * k] = static_cast<T>(walk.slot());
    rows[2 * k + 1] = static_cast<T>(walk.offset());
  }
  return NpyArray(std::move(rows), 2);
}

void check_sample_rows(const GptIndex& index, std::span<const std::int32_t> lengths,
                       std::int64_t sequence, const std::string& name) {
  SampleWalk walk(index.document, lengths);
  for (std::int64_t k = 0; k <= index.samples(); ++k) {
    if (k > 0 && !walk.advance_to(k * sequence))
      throw DataError("{}: the documents of the document index end before sample {} of {} tokens",
                      name, k, sequence);
    if (index.sample(k, 0) != walk.slot() || index.sample(k, 1) != walk.offset())
      throw DataError(
          "{}: row {} of the sample index is ({}, {}), the dataset gives ({}, {}): the files "
          "belong "
          "to another dataset or sequence length",
          name, k, index.sample(k, 0), index.sample(k, 1), walk.slot(), walk.offset());
  }
}

void check_permutation(const NpyArray& shuffle, const std::string& name) {
  std::vector<bool> seen(static_cast<std::size_t>(shuffle.rows()));
  for (std::int64_t i = 0; i < shuffle.rows(); ++i) {
    const std::int64_t sample = shuffle(i);
    if (sample < 0 || sample >= shuffle.rows() || seen[static_cast<std::size_t>(sample)])
      throw DataError("{}: entry {} of the shuffle index is {}: not a permutation of {} samples",
                      name, i, sample, shuffle.rows());
    seen[static_cast<std::size_t>(sample)] = true;
  }
}

}  // namespace

EpochPlan plan_epochs(std::int64_t tokens_per_epoch, std::optional<std::int64_t> wanted,
                      std::int64_t sequence) {
  TRIREME_CHECK(tokens_per_epoch > 0 && sequence > 0 && wanted.value_or(0) >= 0,
                "{} tokens per epoch, sequence {}, {} samples", tokens_per_epoch, sequence,
                wanted.value_or(0));
  EpochPlan plan;
  std::int64_t needed = 1, total = tokens_per_epoch;
  if (wanted) {
    // The epochs' tokens stay below needed + tokens_per_epoch.
    if (__builtin_mul_overflow(*wanted, sequence, &needed) ||
        __builtin_add_overflow(needed, 1, &needed) ||
        __builtin_add_overflow(needed, tokens_per_epoch, &total))
      throw DeckError("{} samples of {} tokens are more than 64-bit numbers count", *wanted,
                      sequence);
    plan.epochs = std::max<std::int64_t>(1, (needed - 1) / tokens_per_epoch + 1);
    total = plan.epochs * tokens_per_epoch;
  }
  plan.samples = (total - 1) / sequence;
  if (plan.epochs == 1) return plan;

  plan.samples_before_last_epoch = (total - tokens_per_epoch - 1) / sequence;
  const std::int64_t of_last_epoch = *wanted - plan.samples_before_last_epoch;
  const std::int64_t per_epoch = (tokens_per_epoch - 1) / sequence;
  TRIREME_CHECK(of_last_epoch >= 0 && of_last_epoch <= per_epoch + 1,
                "{} samples of the last epoch, which has {}", of_last_epoch, per_epoch);
  plan.separate_last_epoch =
      of_last_epoch < static_cast<std::int64_t>(kSeparateBelow * static_cast<double>(per_epoch));
  return plan;
}

double index_bytes(const EpochPlan& plan, std::int64_t documents) {
  const double slots = static_cast<double>(plan.epochs) * static_cast<double>(documents);
  const double row = slots > std::numeric_limits<std::int32_t>::max() ? 8 : 4;
  const double place = shuffle_index_type(plan.samples) == IntegerType::int64 ? 8 : 4;
  return 4 * slots + (2 * row + place) * static_cast<double>(plan.samples);
}

IntegerType sample_index_type(std::int64_t slots, std::int64_t longest_document) {
  return std::max(slots, longest_document) <= std::numeric_limits<std::int32_t>::max()
             ? IntegerType::int32
             : IntegerType::int64;
}

IntegerType shuffle_index_type(std::int64_t samples) {
  return samples < std::int64_t{std::numeric_limits<std::uint32_t>::max()} - 1 ? IntegerType::uint32
                                                                               : IntegerType::int64;
}

NpyArray build_sample_index(IntegerType type, const NpyArray& document,
                            std::span<const std::int32_t> lengths, std::int64_t sequence,
                            std::int64_t samples) {
  return type == IntegerType::int32
             ? build_sample_rows<std::int32_t>(document, lengths, sequence, samples)
             : build_sample_rows<std::int64_t>(document, lengths, sequence, samples);
}

GptIndex build_gpt_index(std::span<const std::int32_t> lengths, SequenceRange documents,
                         std::optional<std::int64_t> wanted, std::int64_t sequence,
                         std::uint32_t seed) {
  if (documents.end > std::numeric_limits<std::int32_t>::max())
    throw DataError("sequence {} of the dataset: the document index counts to 2^31 - 1",
                    documents.end - 1);
  const auto part = lengths.subspan(static_cast<std::size_t>(documents.begin),
                                    static_cast<std::size_t>(documents.size()));
  const std::int64_t tokens = std::accumulate(part.begin(), part.end(), std::int64_t{0});
  const EpochPlan plan = plan_epochs(tokens, wanted, sequence);

  // One generator for the documents and then the samples: the order of these lines matters.
  NumpyRandom random(seed);
  GptIndex index;
  index.document = NpyArray(build_document_index(documents, plan, random));
  index.sample =
      build_sample_index(sample_index_type(index.document.rows(), std::ranges::max(part)),
                         index.document, lengths, sequence, plan.samples);
  index.shuffle = shuffle_index_type(plan.samples) == IntegerType::uint32
                      ? build_shuffle_index<std::uint32_t>(plan, random)
                      : build_shuffle_index<std::int64_t>(plan, random);
  return index;
}

void check_gpt_index(const GptIndex& index, std::span<const std::int32_t> lengths,
                     std::int64_t sequence, const std::string& name) {
  if (index.document.shape().size() != 1 || index.shuffle.shape().size() != 1 ||
      index.sample.shape().size() != 2 || index.sample.columns() != 2)
    throw DataError(
        "{}: expected a document index [n], a sample index [n, 2] and a shuffle index [n]", name);
  if (index.sample.rows() != index.samples() + 1)
    throw DataError("{}: the sample index has {} rows, the shuffle index {}; expected one row more",
                    name, index.sample.rows(), index.samples());
  for (std::int64_t slot = 0; slot < index.document.rows(); ++slot) {
    const std::int64_t document = index.document(slot);
    if (document < 0 || document >= std::ssize(lengths))
      throw DataError("{}: entry {} of the document index is {}, the dataset has {} sequences",
                      name, slot, document, lengths.size());
  }
  check_sample_rows(index, lengths, sequence, name);
  check_permutation(index.shuffle, name);
}

// ---- files

namespace {

constexpr std::array<std::string_view, 3> kIndexmapEndings = {"_doc_idx.npy", "_sample_idx.npy",
                                                              "_shuffle_idx.npy"};

bool names_part(std::string_view stem, Split split) {
  return stem.find(fmt::format("_{}_indexmap_", name_of(split))) != std::string_view::npos;
}

// Calls `call`; an IoError of it then names the key of the folder.
template <typename Call>
void name_cache_key(Call&& call) {
  try {
    call();
  } catch (const IoError& error) {
    throw IoError(
        "the sample indices cannot be kept: {}; name a folder that can be written in "
        "data.index_cache",
        error.what());
  }
}

void make_folder(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot make the folder '{}': {}", folder.string(), error.message());
}

// Atomic also against another process, perhaps on another machine, that publishes the same file.
void publish(const std::filesystem::path& path,
             const std::function<void(const std::filesystem::path&)>& write) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::filesystem::path own = fmt::format("{}.{}-{}", path.string(), host.data(), ::getpid());
  write(own);
  std::error_code error;
  std::filesystem::rename(own, path, error);
  if (!error) return;
  const std::string reason = error.message();
  std::filesystem::remove(own, error);
  throw IoError("cannot rename '{}' to '{}': {}", own.string(), path.string(), reason);
}

void publish_bytes(const std::filesystem::path& path, std::string_view content) {
  publish(path, [&](const std::filesystem::path& own) { write_file_atomically(own, content); });
}

struct NamedArray {
  const std::filesystem::path& path;
  const NpyArray& array;
};

// Writes the arrays and, in the same folder, what they are.
void publish_all(const std::string& stem, const std::string& description,
                 std::initializer_list<NamedArray> arrays) {
  name_cache_key([&] {
    make_folder(std::filesystem::path(stem).parent_path());
    publish_bytes(stem + "-description.txt", description);
    for (const auto& [path, array] : arrays) publish_bytes(path, array.serialize());
  });
}

}  // namespace

void publish_index(const std::filesystem::path& path, const NpyArray& array) {
  name_cache_key([&] {
    make_folder(path.parent_path());
    publish_bytes(path, array.serialize());
  });
}

void publish_index(const std::filesystem::path& path,
                   const std::function<void(const std::filesystem::path&)>& write) {
  name_cache_key([&] { make_folder(path.parent_path()); });
  publish(path, write);
}

std::uint64_t hash_lengths(std::span<const std::int32_t> lengths) {
  // FNV-1a, a length at a time.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::int32_t length : lengths)
    hash = (hash ^ static_cast<std::uint32_t>(length)) * 0x100000001b3u;
  return hash;
}

std::string describe(const IndexKey& key) {
  return fmt::format(
      "class: GPT sample indices\npart: {}\nsequences of the dataset: {} to {}\n"
      "hash of their lengths: {:016x}\nsamples: {}\nsequence length: {}\nseed: {}\n",
      name_of(key.split), key.documents.begin, key.documents.end, key.lengths_hash,
      key.samples ? std::to_string(*key.samples) : "one epoch", key.sequence, key.seed);
}

IndexFiles cache_files(const std::filesystem::path& folder, const IndexKey& key) {
  const std::string name =
      fmt::format("{:016x}-{}-{}samples-{}sequence-{}seed", name_hash(describe(key).c_str()),
                  name_of(key.split), key.samples ? std::to_string(*key.samples) : "all",
                  key.sequence, key.seed);
  const std::string stem = (folder / name).string();
  return {stem + "-document_index.npy", stem + "-sample_index.npy", stem + "-shuffle_index.npy",
          stem};
}

IndexFiles indexmap_files(const std::string& stem) {
  const auto file = [&](std::size_t i) { return stem + std::string(kIndexmapEndings[i]); };
  return {file(0), file(1), file(2), stem};
}

std::optional<std::string> indexmap_stem(std::string_view stems, Split split) {
  std::optional<std::string> found;
  while (!stems.empty()) {
    const std::size_t comma = std::min(stems.find(','), stems.size());
    std::string stem(stems.substr(0, comma));
    stems.remove_prefix(std::min(comma + 1, stems.size()));
    stem.erase(0, stem.find_first_not_of(' '));
    for (const std::string_view ending : kIndexmapEndings)
      if (stem.ends_with(ending)) stem.resize(stem.size() - ending.size());
    if (!names_part(stem, Split::train) && !names_part(stem, Split::valid) &&
        !names_part(stem, Split::test))
      throw DeckError(
          "data.index_files: '{}' names no part; expected the part before '_doc_idx.npy' of a name "
          "such as corpus_train_indexmap_64000ns_1024sl_1234s_doc_idx.npy",
          stem);
    if (!names_part(stem, split) || found == stem) continue;
    if (found)
      throw DeckError("data.index_files: both '{}' and '{}' are for {}", *found, stem,
                      name_of(split));
    found = stem;
  }
  return found;
}

GptIndex map_index(const IndexFiles& files, std::span<const std::int32_t> lengths,
                   std::int64_t sequence) {
  const GptIndex index{.document = NpyArray::map(files.document),
                       .sample = NpyArray::map(files.sample),
                       .shuffle = NpyArray::map(files.shuffle)};
  check_gpt_index(index, lengths, sequence, fmt::format("'{}'", files.stem));
  return index;
}

void write_index(const IndexFiles& files, const IndexKey& key, const GptIndex& index) {
  publish_all(files.stem, describe(key),
              {{files.document, index.document},
               {files.sample, index.sample},
               {files.shuffle, index.shuffle}});
}

// ---- blends

std::string describe(const BlendKey& key) {
  const std::string datasets =
      key.weights.empty() ? fmt::format("sizes of the datasets: {}", fmt::join(key.sizes, ", "))
                          : fmt::format("weights: {}", fmt::join(key.weights, ", "));
  return fmt::format("class: blend index\npart: {}\n{}\nsamples: {}\n", name_of(key.split),
                     datasets, key.samples);
}

BlendFiles cache_files(const std::filesystem::path& folder, const BlendKey& key) {
  const std::string name =
      fmt::format("{:016x}-{}-{}samples-blend", name_hash(describe(key).c_str()),
                  name_of(key.split), key.samples);
  const std::string stem = (folder / name).string();
  return {stem + "-dataset_index.npy", stem + "-dataset_sample_index.npy", stem};
}

BlendIndex map_index(const BlendFiles& files) {
  return {.dataset = NpyArray::map(files.dataset), .sample = NpyArray::map(files.sample)};
}

void write_index(const BlendFiles& files, const BlendKey& key, const BlendIndex& index) {
  publish_all(files.stem, describe(key),
              {{files.dataset, index.dataset}, {files.sample, index.sample}});
}

BlendIndex build_index(const BlendKey& key) {
  return key.weights.empty() ? build_exhaustive_blend_index(key.sizes, key.samples)
                             : build_blend_index(key.weights, key.samples);
}

BlendIndex open_blend_index(const BlendKey& key, const BlendFiles& files, std::int64_t samples,
                            std::span<const std::int64_t> sizes) {
  try {
    BlendIndex cached = map_index(files);
    check_blend_index(cached, sizes, key.samples, files.stem);
    if (cached.samples() == samples) return cached;
  } catch (const Error&) {
  }
  BlendIndex index = build_index(key);
  write_index(files, key, index);
  return index;
}

}  // namespace trireme::data
