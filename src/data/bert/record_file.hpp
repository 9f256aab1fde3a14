// TensorFlow's record files (TFRecord), and the examples in those that BERT's
// create_pretraining_data writes. No TensorFlow, no protobuf.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "data/numpy.hpp"

namespace trireme::data {

/// The byte at which each record of a file begins, and the file's size: [records + 1]. A record is
/// its length (u64), the masked CRC-32C of the length, the data, and their masked CRC-32C; little
/// endian. Reads the lengths only. Throws DataError that names the file and the byte when it is no
/// record file, truncated or damaged there, and IoError.
std::vector<std::int64_t> scan_records(const std::filesystem::path& path);

/// Whether a file is compressed by gzip and not a plain record file. Throws IoError.
bool is_gzip(const std::filesystem::path& path);

/// Writes the bytes of a file compressed by gzip to `output`, which is removed on failure.
/// Throws DataError that names the file and the byte of the output for a damaged stream, and
/// IoError.
void unpack_gzip(const std::filesystem::path& path, const std::filesystem::path& output);

/// An open record file. May be read from several threads concurrently.
class RecordFile {
 public:
  /// `offsets` are scan_records(path)'s. `name` is what messages call it. Throws DataError when the
  /// file has another size, and IoError.
  RecordFile(const std::filesystem::path& path, std::string name, NpyArray offsets);

  std::int64_t records() const { return offsets_.rows() - 1; }
  /// The byte at which record `i` begins; with records() the file's size.
  std::int64_t offset(std::int64_t i) const { return offsets_(i); }
  /// Writes the data of record `i` to `data`. Throws DataError that names the file and the byte
  /// when a checksum is wrong, and IoError.
  void read(std::int64_t i, std::string& data) const;
  /// "'a.tfrecord', record 3 at byte 1024", for messages.
  std::string place_of(std::int64_t i) const;
  /// As ReadFile::require_unchanged().
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  ReadFile file_;
  std::string name_;
  NpyArray offsets_;
};

/// One example: the features of create_pretraining_data.
struct PretrainingExample {
  std::vector<std::int64_t> input_ids, input_mask, segment_ids;  ///< [sequence]
  std::vector<std::int64_t> masked_lm_positions, masked_lm_ids;  ///< [predictions]
  std::vector<float> masked_lm_weights;                          ///< [predictions] 0: padding
  std::vector<std::int64_t> next_sentence_labels;                ///< [1] 1: a random sentence
};

/// Reads a tf.train.Example (example.proto, feature.proto). Other features are skipped. Throws
/// DataError that begins with `place` for data that are no such message, and for a feature that is
/// missing or has another type.
PretrainingExample parse_pretraining_example(std::string_view data, const std::string& place);

}  // namespace trireme::data
