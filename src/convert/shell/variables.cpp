#include "convert/shell/variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace trireme::convert::shell {
namespace {

// A function has `$1` to `$9`, `$@` and `$#` of its own.
constexpr std::size_t kMostNumbered = 9;

bool is_argument(const Values::value_type& variable) {
  const std::string& name = variable.first;
  return name == "@" || name == "#" || (name >= "1" && name <= "9");
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
  if (!fixed_.contains(name)) values_[name] = std::move(elements);
}

void Variables::append(const std::string& name, const std::vector<std::string>& elements) {
  if (fixed_.contains(name)) return;
  std::vector<std::string>& array = values_[name];
  array.insert(array.end(), elements.begin(), elements.end());
}

void Variables::append(const std::string& name, const std::string& text) {
  const auto old = values_.find(name);
  const bool has_text = old != values_.end() && !old->second.empty();
  set(name, {has_text ? old->second[0] + text : text});
}

void Variables::unset(const std::string& name) {
  if (!fixed_.contains(name)) values_.erase(name);
}

Values Variables::exported() const {
  Values values;
  for (const auto& [name, value] : values_)
    if (exported_.contains(name)) values[name] = value;
  return values;
}

Values Variables::replace_arguments(const std::vector<std::string>& words) {
  Values outer;
  std::copy_if(values_.begin(), values_.end(), std::inserter(outer, outer.end()), is_argument);
  std::erase_if(values_, is_argument);
  values_["@"] = std::vector<std::string>(words.begin() + 1, words.end());
  values_["#"] = {fmt::format("{}", words.size() - 1)};
  for (std::size_t i = 1; i < words.size() && i <= kMostNumbered; ++i)
    values_[fmt::format("{}", i)] = {words[i]};
  return outer;
}

void Variables::restore_arguments(Values outer) {
  std::erase_if(values_, is_argument);
  values_.merge(outer);
}

}  // namespace trireme::convert::shell
