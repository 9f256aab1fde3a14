// Variables of a script, and substitutions of `sed`.
#include <fmt/format.h>
#include "convert/shell/script.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

namespace trireme::convert::shell {
namespace {

// The positional arguments: `$1` to `${99}`, `$@` and `$#`.
constexpr std::size_t kMaxNumbered = 99;

bool is_argument(const Values::value_type& variable) {
  const std::string& name = variable.first;
  const bool is_number =
      !name.empty() && name != "0" && name.find_first_not_of("0123456789") == std::string::npos;
  return name == "@" || name == "#" || is_number;
}

}  // namespace

Variables::Variables(const Definitions& definitions, const std::string& file,
                     const Values& environment)
    : values_(environment) {
  for (const auto& [name, value] : environment) exported_.insert(name);
  for (const auto& [name, value] : definitions) {
    values_[name] = {value};
    fixed_.insert(name);
  }
  values_["0"] = {file};
  values_["BASH_SOURCE"] = {file};
}

void Variables::set(const std::string& name, std::vector<std::string> elements) {
  if (fixed_.contains(name)) return;
  changed_.insert(name);
  unset_elements(name);
  values_[name] = std::move(elements);
}

void Variables::set_text(const std::string& name, const std::string& text) {
  if (fixed_.contains(name)) return;
  changed_.insert(name);
  std::vector<std::string>& array = values_[name];
  if (array.empty()) array.emplace_back();
  array[0] = text;
  values_.erase(name + "[0]");
}

void Variables::set_element(const std::string& name, std::vector<std::string> whole,
                            const std::string& element, const std::string& text) {
  if (fixed_.contains(name)) return;
  changed_.insert(name);
  values_[name] = std::move(whole);
  values_[element] = {text};
}

void Variables::append(const std::string& name, const std::vector<std::string>& elements) {
  if (fixed_.contains(name)) return;
  changed_.insert(name);
  std::vector<std::string>& array = values_[name];
  array.insert(array.end(), elements.begin(), elements.end());
}

void Variables::append(const std::string& name, const std::string& text) {
  const auto old = values_.find(name);
  const bool has_text = old != values_.end() && !old->second.empty();
  set_text(name, has_text ? old->second[0] + text : text);
}

void Variables::unset(const std::string& name) {
  if (fixed_.contains(name)) return;
  changed_.insert(name);
  unset_elements(name);
  values_.erase(name);
}

void Variables::unset_elements(const std::string& name) {
  const std::string prefix = name + "[";
  auto at = values_.lower_bound(prefix);
  while (at != values_.end() && at->first.starts_with(prefix)) at = values_.erase(at);
}

Values Variables::values_of(const std::string& name) const {
  Values values;
  for (const auto& [key, value] : values_)
    if (key == name || key.starts_with(name + "[")) values[key] = value;
  return values;
}

void Variables::put_back(const std::string& name, Values values) {
  unset(name);
  if (!fixed_.contains(name)) values_.merge(values);
}

void Variables::forget_arguments(const std::string& mark) {
  changed_.insert("@");
  std::erase_if(values_, is_argument);
  values_["@"] = {mark};
}

Values Variables::exported(const std::vector<std::string>& more) const {
  Values values;
  for (const auto& [name, value] : values_)
    if (exported_.contains(name) || std::find(more.begin(), more.end(), name) != more.end())
      values[name] = value;
  return values;
}

Values Variables::replace_arguments(const std::vector<std::string>& words) {
  Values outer;
  changed_.insert("@");
  std::copy_if(values_.begin(), values_.end(), std::inserter(outer, outer.end()), is_argument);
  std::erase_if(values_, is_argument);
  values_["@"] = std::vector<std::string>(words.begin() + 1, words.end());
  values_["#"] = {fmt::format("{}", words.size() - 1)};
  for (std::size_t i = 1; i < words.size() && i <= kMaxNumbered; ++i)
    values_[fmt::format("{}", i)] = {words[i]};
  return outer;
}

void Variables::restore_arguments(Values outer) {
  std::erase_if(values_, is_argument);
  values_.merge(outer);
}

std::optional<std::string> substitute(std::string_view command, std::string_view text) {
  if (command.size() < 4 || command[0] != 's') return std::nullopt;
  const std::size_t second = command.find(command[1], 2);
  const std::size_t third = second == kNone ? kNone : command.find(command[1], second + 1);
  if (third == kNone) return std::nullopt;
  const std::string_view name = command.substr(2, second - 2);
  const std::string_view value = command.substr(second + 1, third - second - 1);
  const std::string_view options = command.substr(third + 1);
  const bool plain = !name.empty() && name.find_first_of("\\.*[]^$\n") == kNone &&
                     value.find_first_of("\\&\n") == kNone;
  if (!plain || (!options.empty() && options != "g")) return std::nullopt;
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    for (std::size_t at = line.find(name); at != kNone; at = line.find(name, at + value.size())) {
      line.replace(at, name.size(), value);
      if (options.empty()) break;
    }
    result += line;
  }
  return result;
}

}  // namespace trireme::convert::shell
