// GPT samples: Megatron-LM's document, sample and shuffle indices say which tokens make up sample
// i, and the dataset reads them. In the words of these indices a "document" is one sequence of the
// indexed dataset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "data/numpy.hpp"
#include "data/split.hpp"

namespace trireme::data {

/// How often the documents of a part are repeated, and how the repetitions are shuffled.
struct EpochPlan {
  std::int64_t epochs = 1;
  std::int64_t samples = 0;          ///< samples that the epochs hold: at least the wanted number
  bool separate_last_epoch = false;  ///< the last epoch is shuffled separately, being used in part
  std::int64_t samples_before_last_epoch = 0;  ///< meaningful when the last epoch is separate
};

/// Plans samples of `sequence` + 1 tokens (neighbours share one token) out of an epoch of
/// `tokens_per_epoch` > 0 tokens: the fewest epochs that give `wanted` samples, one epoch when
/// `wanted` is absent. Throws DeckError when the numbers leave 64 bits.
EpochPlan plan_epochs(std::int64_t tokens_per_epoch, std::optional<std::int64_t> wanted,
                      std::int64_t sequence);

/// The three indices. Sample i consists of the `sequence` + 1 tokens that begin at row j =
/// shuffle(i) of the sample index: (slot, offset) in the stream of documents
/// document(0), document(1), ...
struct GptIndex {
  NpyArray document;  ///< [epochs * documents] int32: document ids in shuffled order
  NpyArray sample;    ///< [samples + 1, 2] int32 or int64: slot in `document`, token offset there
  NpyArray shuffle;   ///< [samples] uint32 or int64: permutation of the samples

  std::int64_t samples() const { return shuffle.rows(); }
};

/// Bytes of the three indices of `plan` over epochs of `documents`, about: a double, since epochs
/// without end are counted, too.
double index_bytes(const EpochPlan& plan, std::int64_t documents);

/// Element type of the sample index: int64 when slots or lengths do not fit int32.
IntegerType sample_index_type(std::int64_t slots, std::int64_t longest_document);

/// Element type of the shuffle index: int64 from 2^32 - 2 samples on.
IntegerType shuffle_index_type(std::int64_t samples);

/// The sample index [samples + 1, 2]: row k is where token k * sequence of the stream lies.
/// `lengths` are those of all sequences of the dataset. The stream holds more than
/// samples * sequence tokens.
NpyArray build_sample_index(IntegerType type, const NpyArray& document,
                            std::span<const std::int32_t> lengths, std::int64_t sequence,
                            std::int64_t samples);

/// All three indices, equal to Megatron-LM's for the same seed. The tokens of `documents` are more
/// than none.
GptIndex build_gpt_index(std::span<const std::int32_t> lengths, SequenceRange documents,
                         std::optional<std::int64_t> wanted, std::int64_t sequence,
                         std::uint32_t seed);

/// Checks indices that were read from files against the dataset: shapes, document ids, that the
/// sample index is the one that the document index, `lengths` and `sequence` give, and that the
/// shuffle index is a permutation. Throws DataError that begins with `name`.
void check_gpt_index(const GptIndex& index, std::span<const std::int32_t> lengths,
                     std::int64_t sequence, const std::string& name);

/// What a sample looks like.
struct SampleFormat {
  std::int64_t sequence = 0;        ///< tokens the model sees
  std::int64_t vocab = 0;           ///< ids must be below
  std::optional<std::int32_t> eod;  ///< the id that ends a document; needed when not eod_loss
  bool eod_loss = true;             ///< false: positions whose input is `eod` have no label
};

/// Tokens, and the index that cuts samples from them. Immutable and cheap to copy.
struct GptCorpus {
  std::shared_ptr<const IndexedDataset> tokens;
  GptIndex index;
};

/// One part of a run's data: the numbered samples of a corpus, or of several that are mixed.
/// Immutable and cheap to copy.
class GptDataset final : public Dataset {
 public:
  /// Throws DeckError when format.eod_loss is false and there is no format.eod.
  GptDataset(GptCorpus corpus, SampleFormat format);

  /// Sample i is the one of `corpora` that `blend` says, as far as they hold it. Throws like the
  /// above, and DataError that begins with `name` when the blend does not fit the corpora or they
  /// do not hold its first `wanted` samples (check_blend_index).
  GptDataset(std::vector<GptCorpus> corpora, BlendIndex blend, std::int64_t wanted,
             SampleFormat format, const std::string& name);

  /// Number of samples: at least as many as the run wants.
  std::int64_t samples() const override { return samples_; }
  /// tokens and labels.
  const std::vector<Field>& fields() const override { return fields_; }
  const SampleFormat& format() const { return format_; }
  const std::vector<GptCorpus>& corpora() const { return corpora_; }
  /// How the corpora are mixed; nothing when there is one alone.
  const std::optional<BlendIndex>& blend() const { return blend_; }

  /// The tokens of a sample, 0 <= sample < samples(): tokens [sequence + 1]. Throws DataError that
  /// names the id, its document and the vocabulary when an id is negative or not below
  /// format().vocab.
  void read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const;

  /// A sample as training uses it: tokens [sequence] are all of read_tokens() but the last, labels
  /// [sequence] all but the first, kIgnoredLabel where the loss must not look. Throws likewise.
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;

  void require_unchanged() const override;

 private:
  void check_ids(const IndexedDataset& corpus, std::int64_t sequence, std::int64_t offset,
                 std::span<const std::int32_t> tokens) const;

  std::vector<GptCorpus> corpora_;
  std::optional<BlendIndex> blend_;
  std::int64_t samples_ = 0;
  SampleFormat format_;
  std::vector<Field> fields_;
};

// Sample indices in files: Trireme's cache, and the .npy files that Megatron-LM left.

/// All that the indices of one part depend on.
struct IndexKey {
  Split split = Split::train;
  SequenceRange documents;
  std::optional<std::int64_t> samples;  ///< wanted; absent: one epoch
  std::int64_t sequence = 0;
  std::uint32_t seed = 0;
  std::uint64_t lengths_hash = 0;  ///< hash_lengths of the documents
};

/// A hash of documents' lengths in their order: indices outlive a dataset that was made anew.
std::uint64_t hash_lengths(std::span<const std::int32_t> lengths);

/// The key for people, one "name: value" a line.
std::string describe(const IndexKey& key);

/// All that a blend index depends on.
struct BlendKey {
  Split split = Split::train;
  std::int64_t samples = 0;         ///< wanted
  std::vector<double> weights;      ///< normalised; empty: every dataset by its size
  std::vector<std::int64_t> sizes;  ///< samples of each dataset; only without weights
};

/// The key for people, one "name: value" a line.
std::string describe(const BlendKey& key);

/// The .npy files of a blend index.
struct BlendFiles {
  std::filesystem::path dataset, sample;
  std::string stem;  ///< what names them in messages
};

/// FOLDER/STEM-{dataset,dataset_sample}_index.npy, where STEM is
/// <hash>-<part>-<samples>samples-blend with the hash of describe(key).
BlendFiles cache_files(const std::filesystem::path& folder, const BlendKey& key);

/// Maps the two files. Throws IoError and DataError.
BlendIndex map_index(const BlendFiles& files);

/// Three .npy files that belong together.
struct IndexFiles {
  std::filesystem::path document, sample, shuffle;
  std::string stem;  ///< what names them in messages
};

/// FOLDER/STEM-{document,sample,shuffle}_index.npy, where STEM is
/// <hash>-<part>-<samples>samples-<sequence>sequence-<seed>seed with the hash of describe(key).
IndexFiles cache_files(const std::filesystem::path& folder, const IndexKey& key);

/// STEM_{doc,sample,shuffle}_idx.npy, as Megatron-LM before its core wrote them.
IndexFiles indexmap_files(const std::string& stem);

/// The stem among `stems`, separated by commas, that names the part, as PREFIX_train_indexmap_...
/// does; nothing when none does. A whole file name is taken for its stem. Throws DeckError, naming
/// data.index_files, for a stem that names no part at all and when two name the same one.
std::optional<std::string> indexmap_stem(std::string_view stems, Split split);

/// Maps and checks (check_gpt_index) the three files. Throws IoError and DataError.
GptIndex map_index(const IndexFiles& files, std::span<const std::int32_t> lengths,
                   std::int64_t sequence);

/// Writes the files and the key's description to one folder; makes the folder. Several programs may
/// write the same files concurrently: each appears whole. Throws IoError that names
/// data.index_cache.
void write_index(const IndexFiles& files, const IndexKey& key, const GptIndex& index);
void write_index(const BlendFiles& files, const BlendKey& key, const BlendIndex& index);

/// The blend index of `key`, built in memory.
BlendIndex build_index(const BlendKey& key);

/// The blend index of `key` from its files, or, where these cannot be read or do not fit datasets
/// of `sizes` samples and a blend of `samples`, built and written to them. Throws as write_index().
BlendIndex open_blend_index(const BlendKey& key, const BlendFiles& files, std::int64_t samples,
                            std::span<const std::int64_t> sizes);

/// Writes one array; otherwise as write_index().
void publish_index(const std::filesystem::path& path, const NpyArray& array);

/// Calls write(OWN) with a name of this process alone and renames what it wrote to `path`, whose
/// folder is made. Throws what `write` does, and IoError.
void publish_index(const std::filesystem::path& path,
                   const std::function<void(const std::filesystem::path& own)>& write);

}  // namespace trireme::data
