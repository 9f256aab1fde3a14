#include "data/gpt/gpt_dataset.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"

namespace trireme::data {
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
