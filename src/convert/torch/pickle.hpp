// Python's pickle format, protocols 0 to 5, read as data: nothing is imported or called.
//
// Classes and functions stay names. What PyTorch and Megatron-LM save is recognized: containers,
// numbers, texts, objects with attributes (argparse.Namespace) and tensors
// (torch._utils._rebuild_tensor_v2). Everything else stays an opaque object.
// Source: CPython, Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::convert::torch {

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

}  // namespace trireme::convert::torch
