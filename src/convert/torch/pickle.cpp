#include "convert/torch/archive.hpp"

#include <bit>
#include <charconv>
#include <cstring>

#include "core/error.hpp"

namespace trireme::convert::torch {

using Kind = Value::Kind;

/// The machine of pickle: a stack of values, marks in it, and a memo.
class PickleReader {
 public:
  PickleReader(Pickle& pickle, std::string_view bytes, const std::string& name)
      : pickle_(pickle), bytes_(bytes), name_(name) {}

  std::size_t read() {
    while (!step(static_cast<unsigned char>(take(1)[0]))) {
    }
    return at_;
  }

 private:
  [[noreturn]] void fail(const char* problem) const {
    throw DataError("'{}' is not a readable pickle: {} at byte {}", name_, problem, at_);
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail("it is truncated");
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  std::uint64_t whole(int bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(static_cast<std::uint64_t>(bytes)).data(),
                static_cast<std::size_t>(bytes));
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("it is truncated");
    const std::string_view text = take(end - at_);
    ++at_;
    return text;
  }

  Value& make(Kind kind) {
    Value& value = pickle_.values_.emplace_back();
    value.kind = kind;
    return value;
  }
  void push(Value& value) { stack_.push_back(&value); }
  void push_integer(std::int64_t number, Kind kind = Kind::integer) {
    Value& value = make(kind);
    value.integer = number;
    push(value);
  }
  void push_text(std::string_view text) {
    Value& value = make(Kind::text);
    value.text = text;
    push(value);
  }
  Value& pop() {
    if (stack_.size() <= floor()) fail("an operand is missing");
    Value& value = *stack_.back();
    stack_.pop_back();
    return value;
  }
  Value& top() {
    if (stack_.size() <= floor()) fail("an operand is missing");
    return *stack_.back();
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  /// The values above the last mark, which is removed.
  std::vector<const Value*> pop_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const Value*> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }

  bool step(unsigned char opcode);
  bool step_constant(unsigned char opcode);
  bool step_container(unsigned char opcode);
  bool step_object(unsigned char opcode);
  bool step_memo(unsigned char opcode);
  void push_long(std::string_view bytes);
  void push_tuple(std::size_t count);
  void append(Value& list, std::vector<const Value*> items);
  void set_items(Value& dict, const std::vector<const Value*>& items);
  void call(const Value& callee, const Value& arguments);
  void global(std::string_view module, std::string_view name) {
    Value& value = make(Kind::global);
    value.text.append(module).append(".").append(name);
    push(value);
  }

  Pickle& pickle_;
  std::string_view bytes_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, Value*> memo_;
};

/// A little-endian two's complement number; beyond 64 bits only its text remains.
void PickleReader::push_long(std::string_view bytes) {
  if (bytes.size() > sizeof(std::int64_t)) {
    Value& value = make(Kind::object);
    value.text = bytes;
    return push(value);
  }
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  push_integer(static_cast<std::int64_t>(value));
}

void PickleReader::push_tuple(std::size_t count) {
  std::vector<const Value*> items(count);
  for (std::size_t i = count; i > 0; --i) items[i - 1] = &pop();
  Value& tuple = make(Kind::list);
  tuple.items = std::move(items);
  push(tuple);
}

void PickleReader::append(Value& list, std::vector<const Value*> items) {
  // Objects such as torch.Size and deque are lists with a class.
  if (list.kind != Kind::list && list.kind != Kind::object) fail("an item has no list");
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void PickleReader::set_items(Value& dict, const std::vector<const Value*>& items) {
  if (dict.kind != Kind::dict && dict.kind != Kind::object) fail("an entry has no dict");
  if (items.size() % 2 != 0) fail("a key has no value");
  for (std::size_t i = 0; i < items.size(); i += 2)
    dict.entries.emplace_back(items[i], items[i + 1]);
}

/// The result of callee(*arguments), which is not called.
void PickleReader::call(const Value& callee, const Value& arguments) {
  Value& object = make(Kind::object);
  object.callee = &callee;
  object.items = arguments.items;
  push(object);
}

bool PickleReader::step_constant(unsigned char opcode) {
  switch (opcode) {
    case 'N':
      return push(make(Kind::none)), true;
    case 0x88:
    case 0x89:
      return push_integer(opcode == 0x88, Kind::boolean), true;
    case 'I':
    case 'L': {
      std::string_view text = line();
      if (text.ends_with('L')) text.remove_suffix(1);
      if (opcode == 'I' && (text == "00" || text == "01"))
        return push_integer(text == "01", Kind::boolean), true;
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) fail("a number is malformed");
      return push_integer(value), true;
    }
    case 'J':
      return push_integer(static_cast<std::int32_t>(whole(4))), true;
    case 'K':
      return push_integer(static_cast<std::int64_t>(whole(1))), true;
    case 'M':
      return push_integer(static_cast<std::int64_t>(whole(2))), true;
    case 0x8a:
      return push_long(take(whole(1))), true;
    case 0x8b:
      return push_long(take(whole(4))), true;
    case 'G': {
      std::uint64_t bits = whole(8);
      Value& value = make(Kind::real);
      value.real = std::bit_cast<double>(__builtin_bswap64(bits));
      return push(value), true;
    }
    case 'F': {
      const std::string_view text = line();
      Value& value = make(Kind::real);
      std::from_chars(text.data(), text.data() + text.size(), value.real);
      return push(value), true;
    }
    case 'U':
    case 'C':
    case 0x8c:
      return push_text(take(whole(1))), true;
    case 'T':
    case 'B':
    case 'X':
      return push_text(take(whole(4))), true;
    case 0x8d:
    case 0x8e:
    case 0x96:
      return push_text(take(whole(8))), true;
    case 'S': {
      std::string_view text = line();
      if (text.size() >= 2) text = text.substr(1, text.size() - 2);
      return push_text(text), true;
    }
    case 'V':
      return push_text(line()), true;
    default:
      return false;
  }
}

bool PickleReader::step_container(unsigned char opcode) {
  switch (opcode) {
    case '(':
      return marks_.push_back(stack_.size()), true;
    case '0':
      // POP removes a mark if one is on top.
      if (stack_.size() == floor() && !marks_.empty())
        marks_.pop_back();
      else
        pop();
      return true;
    case '1':
      return pop_mark(), true;
    case '2':
      return stack_.push_back(&top()), true;
    case ']':
    case ')':
    case 0x8f:
      return push(make(Kind::list)), true;
    case '}':
      return push(make(Kind::dict)), true;
    case 'l':
    case 't':
    case 0x91: {
      auto items = pop_mark();
      Value& list = make(Kind::list);
      list.items = std::move(items);
      return push(list), true;
    }
    case 'd': {
      const auto items = pop_mark();
      Value& dict = make(Kind::dict);
      set_items(dict, items);
      return push(dict), true;
    }
    case 0x85:
    case 0x86:
    case 0x87:
      return push_tuple(opcode - 0x84u), true;
    case 'a': {
      const Value& item = pop();
      return append(top(), {&item}), true;
    }
    case 'e':
    case 0x90: {
      auto items = pop_mark();
      return append(top(), std::move(items)), true;
    }
    case 's': {
      const Value& value = pop();
      const Value& key = pop();
      return set_items(top(), {&key, &value}), true;
    }
    case 'u': {
      const auto items = pop_mark();
      return set_items(top(), items), true;
    }
    default:
      return false;
  }
}

bool PickleReader::step_object(unsigned char opcode) {
  switch (opcode) {
    case 'c': {
      const std::string_view module = line();
      return global(module, line()), true;
    }
    case 0x93: {
      const Value& name = pop();
      const Value& module = pop();
      return global(module.text, name.text), true;
    }
    case 'R':
    case 0x81: {
      const Value& arguments = pop();
      const Value& callee = pop();
      return call(callee, arguments), true;
    }
    case 0x92: {
      pop();
      const Value& arguments = pop();
      const Value& callee = pop();
      return call(callee, arguments), true;
    }
    case 'i': {
      const std::string_view module = line();
      global(module, line());
      const Value& callee = pop();
      Value& object = make(Kind::object);
      object.callee = &callee;
      object.items = pop_mark();
      return push(object), true;
    }
    case 'o': {
      auto items = pop_mark();
      if (items.empty()) fail("an object has no class");
      Value& object = make(Kind::object);
      object.callee = items[0];
      object.items.assign(items.begin() + 1, items.end());
      return push(object), true;
    }
    case 'b': {
      const Value& state = pop();
      top().state = &state;
      return true;
    }
    case 'Q': {
      const Value& id = pop();
      Value& value = make(Kind::persistent);
      value.items = id.items;
      return push(value), true;
    }
    case 'P': {
      Value& value = make(Kind::persistent);
      value.text = line();
      return push(value), true;
    }
    default:
      return false;
  }
}

bool PickleReader::step_memo(unsigned char opcode) {
  const auto get = [&](std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("a reference has no object");
    stack_.push_back(found->second);
    return true;
  };
  const auto number = [&] {
    const std::string_view text = line();
    std::uint64_t key = 0;
    std::from_chars(text.data(), text.data() + text.size(), key);
    return key;
  };
  switch (opcode) {
    case 'h':
      return get(whole(1));
    case 'j':
      return get(whole(4));
    case 'g':
      return get(number());
    case 'q':
      memo_[whole(1)] = &top();
      return true;
    case 'r':
      memo_[whole(4)] = &top();
      return true;
    case 'p':
      memo_[number()] = &top();
      return true;
    case 0x94:
      memo_[memo_.size()] = &top();
      return true;
    default:
      return false;
  }
}

/// One opcode; true for STOP.
bool PickleReader::step(unsigned char opcode) {
  if (opcode == 0x80) return whole(1), false;  // PROTO
  if (opcode == 0x95) return whole(8), false;  // FRAME
  if (opcode == '.') {
    pickle_.root_ = &pop();
    return true;
  }
  if (!step_constant(opcode) && !step_container(opcode) && !step_object(opcode) &&
      !step_memo(opcode))
    fail("an opcode is unknown");
  return false;
}

Pickle::Pickle(std::string_view bytes, const std::string& name, std::size_t* used) {
  const std::size_t length = PickleReader(*this, bytes, name).read();
  if (used) *used = length;
}

}  // namespace trireme::convert::torch
