// Whole-number arithmetic: `$(( ... ))`, `(( ... ))`, `let`, with the operators of C.
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "convert/shell/script.hpp"

namespace trireme::convert::shell {
namespace {

// Empty if unknown.
using Number = std::optional<std::int64_t>;

// Limit on the terms of an expression, which bounds the recursion.
constexpr int kMaxTerms = 100;

// Limit on variables whose values are expressions themselves.
constexpr int kMaxIndirections = 16;

// A digit of `BASE#DIGITS`.
int digit_of(char c) {
  if (std::isdigit(static_cast<unsigned char>(c))) return c - '0';
  if (std::islower(static_cast<unsigned char>(c))) return c - 'a' + 10;
  if (std::isupper(static_cast<unsigned char>(c))) return c - 'A' + 10;
  return 64;
}

// `10`, octal `010`, hexadecimal `0x10`, `BASE#DIGITS`.
Number literal(std::string_view text) {
  int base = 10;
  if (const std::size_t hash = text.find('#'); hash != kNone) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + hash, base);
    if (error != std::errc() || end != text.data() + hash || base < 2 || base > 36) return {};
    text.remove_prefix(hash + 1);
  } else if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  } else if (text.starts_with('0')) {
    base = 8;
  }
  std::int64_t value = 0;
  if (text.empty()) return {};
  for (const char c : text) {
    const int digit = digit_of(c);
    const bool overflows =
        __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value);
    if (digit >= base || overflows) return {};
  }
  return value;
}

Number power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0 || exponent > 63) return {};
  std::int64_t result = 1;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) return {};
  return result;
}

// The value of `a operation b`; empty if it overflows, or for a division by zero.
Number apply(std::string_view operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool divides = operation == "/" || operation == "%";
  if (divides && (b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1))) return {};
  if ((operation == "<<" || operation == ">>") && (b < 0 || b > 62)) return {};
  if (operation == "+") return __builtin_add_overflow(a, b, &result) ? Number() : result;
  if (operation == "-") return __builtin_sub_overflow(a, b, &result) ? Number() : result;
  if (operation == "*") return __builtin_mul_overflow(a, b, &result) ? Number() : result;
  if (operation == "/") return a / b;
  if (operation == "%") return a % b;
  if (operation == "**") return power(a, b);
  if (operation == "<<") return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b);
  if (operation == ">>") return a >> b;
  if (operation == "<") return a < b;
  if (operation == ">") return a > b;
  if (operation == "<=") return a <= b;
  if (operation == ">=") return a >= b;
  if (operation == "==") return a == b;
  if (operation == "!=") return a != b;
  if (operation == "&") return a & b;
  if (operation == "^") return a ^ b;
  return a | b;
}

// Binary operators by precedence, lowest first; `&&`, `||`, `?:` and assignments are apart.
struct Operator {
  std::string_view text;
  int precedence;
};
constexpr int kHighest = 8;
// Longer operators come before those that they begin with.
constexpr Operator kOperators[] = {{"**", 8}, {"<<", 5}, {">>", 5}, {"<=", 4}, {">=", 4}, {"==", 3},
                                   {"!=", 3}, {"<", 4},  {">", 4},  {"+", 6},  {"-", 6},  {"*", 7},
                                   {"/", 7},  {"%", 7},  {"&", 2},  {"^", 1},  {"|", 0}};

// Recursive descent. An unknown value does not end it: the assignments after it count.
class Parser {
 public:
  Parser(std::string_view text, const Names& names, int indirections = 0)
      : text_(text), names_(names), indirections_(indirections) {}

  Number parse() {
    if (next() == '\0') return 0;
    const Number value = list();
    if (next() != '\0') fails_ = true;
    return fails_ ? Number() : value;
  }

  bool fails() const { return fails_; }

 private:
  // Whether the operand being read is evaluated: not the one after `0 &&`. After an unknown
  // condition it may be, and what it assigns is unknown.
  enum class Mode { run, maybe, skip };

  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view symbol) {
    next();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }

  Number list() {
    Number value = conditional();
    while (!fails_ && take(",")) value = conditional();
    return value;
  }

  // Reads with `read` as an operand that is evaluated if `runs`.
  template <typename Read>
  Number operand(std::optional<bool> runs, Read read) {
    const Mode mode = !runs ? Mode::maybe : *runs ? Mode::run : Mode::skip;
    const Mode outer = std::exchange(mode_, std::max(mode_, mode));
    const Number value = read();
    mode_ = outer;
    return value;
  }

  Number conditional() {
    if (++terms_ > kMaxTerms) fails_ = true;
    if (fails_) return {};
    const Number condition = either();
    if (!take("?")) return condition;
    const auto holds = condition ? std::optional(*condition != 0) : std::nullopt;
    const Number yes = operand(holds, [&] { return list(); });
    if (!take(":")) fails_ = true;
    const auto fails = holds ? std::optional(!*holds) : std::nullopt;
    const Number no = operand(fails, [&] { return conditional(); });
    return holds ? (*holds ? yes : no) : yes == no ? yes : Number();
  }

  Number either() {
    Number value = both();
    while (!fails_ && take("||")) {
      const auto runs = value ? std::optional(*value == 0) : std::nullopt;
      const Number right = operand(runs, [&] { return both(); });
      if (runs == false || (right && *right != 0))
        value = 1;
      else if (value && right)
        value = 0;
      else
        value = {};
    }
    return value;
  }

  Number both() {
    Number value = binary(0);
    while (!fails_ && take("&&")) {
      const auto runs = value ? std::optional(*value != 0) : std::nullopt;
      const Number right = operand(runs, [&] { return binary(0); });
      if (runs == false || (right && *right == 0))
        value = 0;
      else if (value && right)
        value = 1;
      else
        value = {};
    }
    return value;
  }

  // The operator of `precedence` that follows; "" if there is none, or if it assigns.
  std::string_view operator_of(int precedence) {
    next();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("&&") || rest.starts_with("||")) return "";
    for (const Operator& candidate : kOperators) {
      if (!rest.starts_with(candidate.text)) continue;
      return candidate.precedence == precedence ? candidate.text : "";
    }
    return "";
  }

  Number binary(int precedence) {
    if (precedence > kHighest) return factor();
    Number value = binary(precedence + 1);
    for (std::string_view sign; !fails_ && !(sign = operator_of(precedence)).empty();) {
      at_ += sign.size();
      // `**` associates to the right.
      const Number right = binary(sign == "**" ? precedence : precedence + 1);
      value = value && right ? apply(sign, *value, *right) : Number();
    }
    return value;
  }

  Number factor() {
    if (++terms_ > kMaxTerms) fails_ = true;
    if (fails_) return {};
    for (const std::string_view step : {"++", "--"})
      if (take(step)) return step_name(step);
    for (const char sign : {'-', '+', '!', '~'}) {
      if (next() != sign) continue;
      ++at_;
      const Number value = factor();
      if (!value || sign == '+') return value;
      if (sign == '-') return apply("-", 0, *value);
      return sign == '!' ? static_cast<std::int64_t>(*value == 0) : ~*value;
    }
    if (take("(")) {
      const Number value = list();
      if (!take(")")) fails_ = true;
      return value;
    }
    if (next() == kUnknownBegin) {
      at_ = std::min(text_.find(kUnknownEnd, at_), text_.size() - 1) + 1;
      return {};
    }
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_name(text_[at_]) || text_[at_] == '#')) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty()) fails_ = true;
    if (fails_) return {};
    if (!std::isdigit(static_cast<unsigned char>(word[0]))) return variable(name_at(begin));
    const Number value = literal(word);
    if (!value) fails_ = true;
    return value;
  }

  // The name that begins at `begin`, with its index in brackets; moves past it.
  std::string name_at(std::size_t begin) {
    at_ = begin;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ < text_.size() && text_[at_] == '[') {
      const std::size_t close = text_.find(']', at_);
      if (close == kNone) fails_ = true;
      at_ = close == kNone ? text_.size() : close + 1;
    }
    if (at_ == begin) fails_ = true;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // `++NAME` and `--NAME`.
  Number step_name(std::string_view step) {
    next();
    const std::string name = name_at(at_);
    const Number old = value_of(name);
    return assign(name, old ? apply(step.substr(1), *old, 1) : old);
  }

  // NAME, `NAME++`, `NAME = value` or `NAME += value`.
  Number variable(const std::string& name) {
    for (const std::string_view step : {"++", "--"}) {
      if (!take(step)) continue;
      const Number old = value_of(name);
      assign(name, old ? apply(step.substr(1), *old, 1) : old);
      return old;
    }
    for (const std::string_view sign :
         {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="}) {
      if (sign == "=" && text_.substr(at_, 2) == "==") continue;
      if (!take(sign)) continue;
      const Number right = conditional();
      if (sign == "=") return assign(name, right);
      const Number old = value_of(name);
      return assign(name,
                    old && right ? apply(sign.substr(0, sign.size() - 1), *old, *right) : Number());
    }
    return value_of(name);
  }

  Number value_of(const std::string& name) {
    if (fails_ || mode_ == Mode::skip) return 0;
    const auto text = names_.value_of(name);
    if (!text || indirections_ >= kMaxIndirections) return {};
    // The value of a variable is an expression again, often one number.
    return Parser(*text, names_, indirections_ + 1).parse();
  }

  Number assign(const std::string& name, Number value) {
    if (fails_ || mode_ == Mode::skip) return value;
    names_.assign(name, mode_ == Mode::maybe ? Number() : value);
    return value;
  }

  std::string_view text_;
  const Names& names_;
  int indirections_;
  std::size_t at_ = 0;
  int terms_ = 0;
  bool fails_ = false;
  Mode mode_ = Mode::run;
};

// Calls names.assign() without a value for each name that `expression` may assign.
void forget_assigned(std::string_view expression, const Names& names) {
  if (expression.find('=') == kNone && expression.find("++") == kNone &&
      expression.find("--") == kNone)
    return;
  for (std::size_t at = 0; at < expression.size();) {
    const std::size_t begin = at;
    while (at < expression.size() && is_name(expression[at])) ++at;
    const std::string name(expression.substr(begin, at - begin));
    if (!name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])))
      names.assign(name, std::nullopt);
    at = std::max(at, begin + 1);
  }
}

}  // namespace

std::optional<std::int64_t> evaluate(std::string_view expression, const Names& names) {
  Parser parser(expression, names);
  const Number value = parser.parse();
  // An expression that cannot be read leaves what it may assign unknown.
  if (parser.fails()) forget_assigned(expression, names);
  return value;
}

}  // namespace trireme::convert::shell
