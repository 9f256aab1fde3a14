// Files of torch.save(): the zip archives of PyTorch 1.6 and newer, and the older sequence of
// pickles. Files are mapped into memory; tensors are read when they are needed.
//
// Zip: `<name>/data.pkl` is the pickle, `<name>/data/<key>` the bytes of each storage, all stored
// without compression. Older: pickles of a magic number, a version, the system's description, the
// object and the list of storage keys, followed by the elements' number and bytes of each storage.
// Sources: PyTorch, torch/serialization.py; PKWARE, APPNOTE.TXT (zip64).
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/tensor.hpp"

namespace trireme::convert::torch {

// ---------------------------------------------------------------------------- pickles
//
// Python's pickle format, protocols 0 to 5, read as data: nothing is imported or called.
//
// Classes and functions stay names. What PyTorch and Megatron-LM save is recognized: containers,
// numbers, texts, objects with attributes (argparse.Namespace) and tensors
// (torch._utils._rebuild_tensor_v2). Everything else stays an opaque object.
// Source: CPython, Lib/pickletools.py.

/// One object of a pickle. Pointers refer to other values of the same Pickle.
struct Value {
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,       ///< str and bytes
    list,       ///< list, tuple and set, in `items`
    dict,       ///< `entries`
    global,     ///< a class or function, in `text`: "torch.FloatStorage"
    object,     ///< the result of calling `callee` with `items`; attributes in `state`
    persistent  ///< a reference into the archive: `items` has its id
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  ///< also 0 or 1 of a boolean
  double real = 0;
  std::string text;
  std::vector<const Value*> items;
  std::vector<std::pair<const Value*, const Value*>> entries;
  const Value* callee = nullptr;
  const Value* state = nullptr;

  bool is(Kind other) const { return kind == other; }
  bool is_number() const { return kind == Kind::integer || kind == Kind::real; }
  double number() const { return kind == Kind::real ? real : static_cast<double>(integer); }
  /// The value of the text or whole-number key `key` of a dict, or the attribute of an object; null
  /// if there is none.
  const Value* find(std::string_view key) const;
  /// The entries of a dict, or of an object's attributes or items (OrderedDict).
  const std::vector<std::pair<const Value*, const Value*>>& fields() const;
  /// "collections.OrderedDict" for an object of that class, else "".
  std::string_view class_name() const;
};

/// The objects of one pickle. Owns all values, so that references between them may form cycles.
class Pickle {
 public:
  /// Reads the pickle at the start of `bytes` and sets `used` to its length. Memory is proportional
  /// to `bytes`. Throws DataError, with `name` in the message, for malformed and truncated input
  /// and for opcodes that only other programs write.
  Pickle(std::string_view bytes, const std::string& name, std::size_t* used = nullptr);

  const Value& root() const { return *root_; }
  const std::deque<Value>& values() const { return values_; }

 private:
  friend class PickleReader;
  std::deque<Value> values_;
  const Value* root_ = nullptr;
};

// ---------------------------------------------------------------------------- archives

/// A strided view of a storage.
struct Tensor {
  std::string storage;  ///< key in the archive
  std::optional<DType> dtype;
  std::string type;  ///< "torch.HalfStorage"
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  std::int64_t elements() const;
};

/// The tensor that `value` describes; empty if it is none. Parameters count as tensors.
std::optional<Tensor> as_tensor(const Value& value);

/// A file of torch.save().
class Archive {
 public:
  /// Maps `path` and reads its pickle. Throws IoError; DataError for damaged files and for
  /// compressed archives.
  explicit Archive(const std::filesystem::path& path);
  /// The same for `length` bytes from `offset` of `path`.
  Archive(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t length);

  const Value& root() const { return pickle_->root(); }
  const std::filesystem::path& path() const { return path_; }

  /// The elements of `tensor` in row-major order as fp32: exact from fp16, bf16 and fp32, rounded
  /// from fp64. Throws DataError if they are outside the storage or of another type.
  std::vector<float> read(const Tensor& tensor) const;

 private:
  void open(std::string_view bytes);
  void open_zip(std::string_view bytes);
  void open_legacy(std::string_view bytes);

  std::filesystem::path path_;
  MappedFile file_;
  std::unique_ptr<Pickle> pickle_;
  std::map<std::string, std::string_view> storages_;
};

}  // namespace trireme::convert::torch
