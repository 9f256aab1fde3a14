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

// Opens one split of a run's data, from one indexed dataset or a blend of several: split, index,
// cache.

/// All that decides the samples of one part of a dataset.
struct GptSplitConfig {
  std::filesystem::path prefix;       ///< with or without ".bin" or ".idx"
  std::vector<double> split_weights;  ///< of train, valid and test; empty: the part is all of it
  Split split = Split::train;
  std::optional<std::int64_t> samples;  ///< samples the run takes; absent: one epoch
  std::int64_t seed = 1234;             ///< data.seed, 0 .. 2^32 - 1 as numpy takes it
  SampleFormat format;
  std::filesystem::path index_cache;  ///< data.index_cache; empty: default_index_cache(prefix)
  /// data.index_files: stems of existing PREFIX_SPLIT_indexmap_..._{doc,sample,shuffle}_idx.npy
  /// files, separated by commas. The one that names this part is used instead of building; parts
  /// not named are built.
  std::string index_files;
};

/// The process that builds indices when several processes open the same part.
struct IndexBuilder {
  bool builds = true;                     ///< true in exactly one process
  std::function<void()> barrier = [] {};  ///< collective over all processes that open the part
};

/// Documents, tokens and epochs of one part: what `--check` shows.
struct SplitSummary {
  SequenceRange documents;
  std::uint64_t lengths_hash = 0;  ///< hash_lengths of the documents
  std::int64_t tokens = 0;         ///< in one epoch
  std::int64_t epochs = 0;   ///< needed for the samples wanted; 0 when no number of them suffices
  std::int64_t samples = 0;  ///< that those epochs give
  double index_bytes = 0;    ///< of the indices of those samples, in memory while they are built
};

/// Where indices are kept unless the deck says otherwise: cache/trireme_indices in the folder of
/// the dataset.
std::filesystem::path default_index_cache(const std::filesystem::path& prefix);

/// Describes a part without building anything. Reads the .idx file only once, in milliseconds per
/// million documents. Throws as IndexedDataset and normalize_weights do, and for index files that
/// the deck names and the part cannot use.
SplitSummary summarize_split(const GptSplitConfig& config);

/// Throws DeckError, naming the part, its documents, tokens and epochs, when it cannot give one
/// sample, or gives so many that their index is larger than the host's memory.
void require_samples(const GptSplitConfig& config, const SplitSummary& summary);

/// Builds the indices of a part in memory, without cache or files. Throws as summarize_split and
/// require_samples do.
GptIndex build_split_index(const GptSplitConfig& config);

/// Opens a part. Collective: every process calls it with the same configuration and its own
/// `builder`; the one that builds writes the indices to the cache if they are not there yet, the
/// others wait at the barrier, then all map them. Throws IoError that names data.index_cache when
/// the cache cannot be written, DeckError for bad keys and DataError for bad files; a process that
/// throws does not reach the barrier, so the caller must end the others.
GptCorpus open_gpt_split(const GptSplitConfig& config, const IndexBuilder& builder = {});

/// All that decides the samples of one part of a run's data.
struct GptBlendConfig {
  std::vector<std::filesystem::path> prefixes;  ///< of the datasets, at least one
  /// One for each prefix, above 0: datasets are repeated and cut to give samples in proportion.
  /// Empty: each is used once, in proportion to its size; a dataset alone as often as need be.
  std::vector<double> weights;
  /// All else. Its prefix is left empty; its samples are those of the blend, and where they are
  /// absent every dataset is used once whatever its weight.
  GptSplitConfig common;

  /// Whether there is nothing to mix.
  bool single() const { return prefixes.size() == 1 && weights.empty(); }
};

/// What `--check` shows.
struct BlendSummary {
  std::vector<SplitSummary> datasets;  ///< in the order of the prefixes
  std::int64_t samples = 0;            ///< of the blend
};

/// The key of a blend's index for `wanted` samples: by the `weights`, or by the sizes in `summary`
/// where there are none. A weight says nothing when every dataset is used once (`wanted` empty).
BlendKey blend_key(Split split, std::span<const double> weights, std::optional<std::int64_t> wanted,
                   const BlendSummary& summary);

/// Sets the samples of a blend of `summary.datasets`, which messages call `names`: the shares of
/// `wanted` by `weights`; without weights all samples, of several datasets at most `wanted`. Throws
/// DeckError for bad weights, and when datasets without weights have fewer samples than `wanted`.
void total_blend(BlendSummary& summary, Split split, std::span<const double> weights,
                 std::optional<std::int64_t> wanted, std::span<const std::string> names);

/// How the part of dataset `which` is opened: Megatron-LM asks of each dataset of a weighted blend
/// half a percent more samples than its share.
GptSplitConfig dataset_config(const GptBlendConfig& config, std::size_t which);

/// Describes a part without building anything. Throws as summarize_split, and as require_samples
/// for each dataset of a blend; DeckError for bad weights and when datasets without weights hold
/// fewer samples than the run takes.
BlendSummary summarize_blend(const GptBlendConfig& config);

/// 16 hexadecimal digits that tell which documents the part has of each dataset, by their ranges
/// and lengths in order: other documents give others. Neither paths nor weights nor samples matter.
std::string identify_documents(const BlendSummary& summary);

/// The blend's index, built in memory. Throws as summarize_blend.
BlendIndex build_blend_index(const GptBlendConfig& config);

/// Opens a part. Collective in the way of open_gpt_split, and throws like it and summarize_blend.
GptDataset open_gpt_blend(const GptBlendConfig& config, const IndexBuilder& builder = {});

}  // namespace trireme::data
