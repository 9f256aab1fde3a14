// A checkpoint's file as one process reads, writes and describes it, without MPI; and the folder of
// a run's checkpoints.
//
// Attributes of `/` hold the state of the run that is not a tensor, `/deck` the effective deck as
// text; every other dataset is one tensor under its logical name ("model/embedding/word",
// "optimizer/m/embedding/word") with an attribute `checksum`. All other bytes have the checksum of
// the structure (see below), after the end of the HDF5 file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor.hpp"
#include "grid/layout.hpp"

namespace trireme::checkpoint {

/// The version that save() writes, in the attribute `format_version`. Older ones are read, newer
/// ones refused. Since version 2 a file has a checksum of its structure.
inline constexpr std::int64_t kFormatVersion = 2;

/// The state of a run that is not a tensor, by name.
using Attribute = std::variant<std::int64_t, double, std::string>;
using Attributes = std::map<std::string, Attribute>;

/// What a checkpoint says about one of its tensors.
struct TensorInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::uint64_t checksum = 0;
  /// Byte offset of its elements in the file, contiguous and row-major; unset: HDF5 reads them, as
  /// they are compressed.
  std::optional<std::int64_t> offset = {};
};

/// Everything in a checkpoint but the elements of its tensors.
struct Header {
  Attributes attributes;
  std::string deck;
  std::vector<TensorInfo> tensors;  ///< by name, numbers in names by value
  std::filesystem::path path;       ///< of the file, for messages

  /// The attribute `name` as a T (std::int64_t, double or std::string). Throws DataError that names
  /// the file when it is absent or of another type.
  template <typename T>
  const T& get(const std::string& name) const;
  /// The tensor `name`, null when there is none.
  const TensorInfo* find(const std::string& name) const;
  /// The format version.
  std::int64_t version() const { return get<std::int64_t>("format_version"); }
};

/// An open checkpoint. All methods throw DataError, naming the file and the problem, when the file
/// is truncated, foreign, damaged or newer than this program, IoError when it cannot be opened at
/// all.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  const Header& header() const { return header_; }

  /// Writes the elements of `slabs` to `data`, in that order. Does not verify the checksum.
  void read(const TensorInfo& tensor, const grid::Hyperslabs& slabs, void* data) const;
  /// The same, and returns their checksum (checksum() below), computed while they are in the
  /// CPU's cache.
  std::uint64_t read_with_checksum(const TensorInfo& tensor, const grid::Hyperslabs& slabs,
                                   void* data) const;
  /// Calls use(elements, count) with consecutive elements of the whole tensor, a MiB or so at a
  /// time, which are gone after the call. Returns their checksum.
  std::uint64_t stream(
      const TensorInfo& tensor,
      const std::function<void(const void* elements, std::int64_t count)>& use) const;
  /// Writes the whole tensor, shape.size() elements of `dtype`, to `data` and verifies its
  /// checksum. `name` must exist with exactly that type.
  void read_whole(const std::string& name, DType dtype, void* data) const;

 private:
  struct File;
  std::unique_ptr<File> file_;
  std::filesystem::path path_;
  Header header_;
};

/// The header of the checkpoint at `path`. Throws as Reader does.
Header read_header(const std::filesystem::path& path);

/// The attributes of the checkpoint at `path`, its tensors (shape, type, checksum, sum of squares)
/// and its deck, for people or as one JSON object. Reads every element and verifies every checksum,
/// a MiB or so in memory at a time. `progress` gets a progress meter, null nothing. Throws as
/// Reader does.
std::string describe(const std::filesystem::path& path, bool json, std::FILE* progress = nullptr);

/// What verify() has verified.
struct Verified {
  std::size_t tensors = 0;
  double bytes = 0;       ///< of their elements
  bool structure = true;  ///< false for files of format version 1, which have no checksum of it
};

/// Reads the checkpoint at `path` and verifies the checksums of its structure and of every tensor,
/// as describe(). Throws DataError naming the structure, or all damaged tensors.
Verified verify(const std::filesystem::path& path, std::FILE* progress = nullptr);

/// A whole logical tensor of fp32. With neither `data` nor `load` its elements are zeros.
struct WholeTensor {
  std::string name;             ///< path in the file, without a leading slash
  Shape shape;                  ///< one or two axes
  const float* data = nullptr;  ///< shape.size() elements
  /// Without `data`: writes the elements of the rows [begin, end) to `out`; an element of a tensor
  /// of one axis is a row. Called once for each row, by several threads.
  std::function<void(std::int64_t begin, std::int64_t end, float* out)> load = nullptr;

  bool is_zero() const { return !data && !load; }
};

/// Writes a checkpoint under a temporary name, syncs it and renames it to `path`, whose folder must
/// exist; no file `latest` is touched. `attributes` gains `format_version`. Throws IoError when the
/// file cannot be written, and what a tensor's load() throws of DataErrors. `progress` gets a
/// progress meter, null nothing. Each of `threads` (0: as many as there are CPUs, at most 16) has
/// 16 MiB of elements in memory, or a row; the file does not depend on their number.
void write_checkpoint(const std::filesystem::path& path, const Attributes& attributes,
                      const std::string& deck, const std::vector<WholeTensor>& tensors,
                      std::FILE* progress = nullptr, std::size_t threads = 0);

// ---- tensors as ranks hold them

/// Part of a tensor in this rank's memory.
struct Piece {
  grid::Hyperslabs slabs;  ///< where the elements belong; see grid::Hyperslabs for the order
  /// count_elements(slabs) elements, in host memory or that of the backend that save() and load()
  /// are told; save() only reads them
  void* data = nullptr;
  bool owner = true;  ///< false on replicas: they are read by load() and not written by save()
};

/// Bytes of a piece's elements.
inline std::int64_t piece_bytes(const Piece& piece, DType dtype) {
  return count_elements(piece.slabs) * static_cast<std::int64_t>(size_of(dtype));
}

/// A logical tensor and what this rank holds of it: nothing, or one or more pieces.
struct LocalTensor {
  std::string name;  ///< path in the file, without a leading slash
  Shape shape;       ///< global shape, one or two axes
  DType dtype = DType::f32;
  std::vector<Piece> pieces;
};

// ---- checksums: of each tensor's elements, and of the structure

// The structure is every byte that is not an element. HDF5 checksums its own metadata too, but not
// unused bytes, and only once it has trusted some of them.
//
// The checksum of the structure stands in a trailer after the end of the HDF5 file, which HDF5
// ignores:
//
//   for each tensor, by offset   the offset and the size of its elements, in bytes
//   count                        of tensors
//   hash                         of all bytes before it that are not elements
//   "TRIREME\n"
//
// All numbers have 64 bits, little-endian.

/// The checksum of format version `version`, a sum modulo 2^64, over the elements of `slabs`, whose
/// memory is `data`: a sum of terms of the element's global row-major index and its bit pattern. A
/// change of one 32-bit word always changes it. Version 1 takes three times as long.
std::uint64_t checksum(std::int64_t version, const Shape& shape, DType dtype,
                       const grid::Hyperslabs& slabs, const void* data);

/// The sum of the squares of the global indices of the elements of `slabs`. Together with the count
/// it tells whether parts cover a tensor once: a gap and an overlap of equal size keep the count
/// and change this.
std::uint64_t index_moment(const Shape& shape, const grid::Hyperslabs& slabs);

/// Where the elements of a tensor are in the file, in bytes.
struct ElementRange {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Reads `bytes` at `offset` of a file into `data`; throws when it cannot.
using ReadAt = std::function<void(void* data, std::int64_t bytes, std::int64_t offset)>;

/// The trailer of an HDF5 file of `file_bytes`, which `read` reads, with the elements of its
/// tensors at `elements`.
std::string structure_trailer(std::vector<ElementRange> elements, std::int64_t file_bytes,
                              const ReadAt& read);

/// Verifies the structure of the file at `path` without HDF5; elements are not read. Returns false
/// when it has no trailer. Throws DataError when the trailer does not match, IoError when the file
/// cannot be read.
bool verify_structure(const std::filesystem::path& path);

// ---- the folder of a run's checkpoints: listing, the one to resume from, retention

/// `folder`/step-00001000.h5 for iteration 1000.
std::filesystem::path step_path(const std::filesystem::path& folder, std::int64_t iteration);

/// A published checkpoint file. Its iteration is taken from its name.
struct Step {
  std::int64_t iteration = 0;
  std::filesystem::path path;
};

/// The step files of `folder`, oldest iteration first, without unfinished (.part) and superseded
/// ones. Empty when the folder does not exist. Throws IoError.
std::vector<Step> list_steps(const std::filesystem::path& folder);

/// The checkpoint to resume from.
struct Latest {
  std::filesystem::path path;
  std::string note;  ///< empty, or why it is not the one that `latest` names
};

/// The checkpoint that `folder`/latest names. When that file is missing, or the checkpoint is
/// missing or damaged, the newest older step file that can be opened, with a note; newer ones are
/// superseded. Empty when the folder has no checkpoint at all. Throws DataError when it has some
/// and none can be opened.
std::optional<Latest> find_latest(const std::filesystem::path& folder);

/// Whether `path` is a folder of checkpoints of Megatron-LM or DeepSpeed, or one of them.
bool is_foreign(const std::filesystem::path& path);

/// The checkpoint that the user means by `path`: the file itself, or find_latest() of a folder of
/// checkpoints or of a run's folder. Throws IoError when there is none, and as find_latest().
Latest locate(const std::filesystem::path& path);

/// Deletes the step files that are neither among the `keep` newest up to the one that `latest`
/// names, nor newer than that, nor milestones; without `keep` deletes
/// nothing. Called by one rank after a save that succeeded. Returns the deleted files. Throws
/// IoError that names the first file that cannot be deleted, after deleting the others.
std::vector<std::filesystem::path> retain(
    const std::filesystem::path& folder, std::optional<std::int64_t> keep,
    const std::function<bool(const Step&)>& is_milestone = [](const Step&) { return false; });

/// Writes the name of `path` to the file `latest` in its folder, atomically. Throws IoError.
void publish(const std::filesystem::path& path);

/// Abandons the folder's checkpoints that are newer than the one at `path`, of `iteration`: names
/// the latter in `latest`, and then adds ".superseded" to the names of the newer step files, which
/// then are no step files any more. A kill in between is harmless: a start from the same checkpoint
/// completes it. With `deletes` the newer ones are deleted instead. Returns how many there were.
/// Throws IoError.
int supersede_newer(const std::filesystem::path& path, std::int64_t iteration,
                    bool deletes = false);

/// Deletes the folder's step files of the iterations `first` to `last`. Throws IoError.
void delete_steps(const std::filesystem::path& folder, std::int64_t first, std::int64_t last);

/// Deletes the unfinished files of `folder`: step-*.part, those that MPI-IO made with them, and
/// latest.part. Throws IoError.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
