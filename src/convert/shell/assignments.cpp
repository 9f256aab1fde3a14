// Variables of a script, substitutions of `sed`, and what sets variables: assignments,
// `declare`, `local`, `read`, `let`, `printf -v`, expressions.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "convert/shell/follower.hpp"
#include "convert/shell/script.hpp"

namespace trireme::convert::shell {
namespace {

bool is_variable(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), is_name) &&
         !std::isdigit(static_cast<unsigned char>(name[0]));
}

// The option letters of `words` from `first` on, such as "ra" of `-r -a`.
std::string option_letters(const std::vector<std::string>& words, std::size_t first) {
  std::string letters;
  for (std::size_t i = first; i < words.size() && words[i].starts_with('-'); ++i)
    letters += words[i].substr(1);
  return letters;
}

}  // namespace

std::string Follower::under_condition(const std::string& name) const {
  return unknown(fmt::format("${} (line {} sets it under a condition)", name, line_));
}

void Follower::assign(const std::string& word) {
  const std::size_t equals = *assignment_at(word);
  const bool appends = equals > 0 && word[equals - 1] == '+';
  const std::string name = word.substr(0, equals - (appends ? 1 : 0));
  const std::string raw = word.substr(equals + 1);
  if (name.find('[') != std::string::npos) {
    const std::string index = expander().text(name.substr(name.find('[') + 1));
    const std::string target = fmt::format("{}[{}", name.substr(0, name.find('[')), index);
    const auto old =
        appends ? variables_.values().find(element_of(target)) : variables_.values().end();
    const bool has_old = old != variables_.values().end() && !old->second.empty();
    const std::string before = !appends  ? ""
                               : has_old ? old->second[0]
                                         : unknown("${" + name + "}");
    set_element(target, before + expander().text(raw));
  } else if (raw.starts_with("(") && raw.ends_with(")")) {
    assign_array(name, raw, appends);
  } else {
    assign_text(name, expander().text(raw), appends);
  }
}

void Follower::assign_text(const std::string& name, const std::string& text, bool appends) {
  if (mode_ != Mode::maybe) {
    if (integers_.contains(name)) {
      const auto value = expander().value_of(
          appends ? fmt::format("{} + ({})", name, text.empty() ? "0" : text) : text);
      return variables_.set(name, {value ? fmt::format("{}", *value) : unknown("$" + name)});
    }
    return appends ? variables_.append(name, text) : variables_.set_text(name, text);
  }
  // The old value stays in front if the condition only appends to it.
  const auto old = variables_.values().find(name);
  const bool known =
      old != variables_.values().end() && !old->second.empty() && !old->second[0].empty();
  if (known && (appends || text.starts_with(old->second[0])))
    variables_.set(name, {fmt::format("{} {}", old->second[0], under_condition(name))});
  else
    variables_.set(name, {under_condition(name)});
}

// `NAME=( ... )` and `NAME+=( ... )`.
void Follower::assign_array(const std::string& name, const std::string& raw, bool appends) {
  std::vector<std::string> array;
  for (const Command& line_of_words : read_commands(raw.substr(1, raw.size() - 2), file_, line_))
    for (std::string& element : expand_all(line_of_words.words, 0))
      array.push_back(std::move(element));
  const auto old = variables_.values().find(name);
  const bool known = old != variables_.values().end() && !old->second.empty();
  if (mode_ == Mode::maybe && appends && known)
    variables_.append(name, std::vector<std::string>{under_condition(name)});
  else if (mode_ == Mode::maybe)
    variables_.set(name, {under_condition(name)});
  else if (!array.empty() && array[0].starts_with('[') && array[0].find("]=") != std::string::npos)
    set_keys(name, array);
  else if (appends)
    variables_.append(name, array);
  else
    variables_.set(name, std::move(array));
}

// The name under which the element `NAME[INDEX]` is stored: of an array that `declare -A` did not
// declare, the index is an expression.
std::string Follower::element_of(const std::string& target) {
  const std::size_t bracket = target.find('[');
  const std::string name = target.substr(0, bracket);
  std::string index = target.substr(bracket + 1);
  if (index.ends_with(']')) index.pop_back();
  if (!associative_.contains(name) && !has_unknown(index))
    if (const auto number = expander().value_of(index)) index = fmt::format("{}", *number);
  return fmt::format("{}[{}]", name, index);
}

// `NAME[INDEX]=value`: an element of an array, or of an associative one. The whole array is then
// unknown unless the index is a number within it, or the next one.
void Follower::set_element(const std::string& target, const std::string& value) {
  const std::string element = element_of(target);
  const std::size_t bracket = element.find('[');
  const std::string name = element.substr(0, bracket);
  if (variables_.is_fixed(name)) return;
  const std::string index = element.substr(bracket + 1, element.size() - bracket - 2);
  const bool known = mode_ != Mode::maybe && !has_unknown(index);
  const std::string text = known ? value : unknown(fmt::format("${{{}[{}]}}", name, shown(index)));
  const auto old = variables_.values().find(name);
  std::vector<std::string> array;
  if (old != variables_.values().end()) array = old->second;
  const bool is_number = !index.empty() && index.size() < 4 &&
                         index.find_first_not_of("0123456789") == std::string::npos;
  const bool fits =
      known && is_number && !associative_.contains(name) && std::stoul(index) <= array.size();
  // An index that is unknown may be that of any element.
  if (has_unknown(index)) variables_.unset_elements(name);
  if (fits && std::stoul(index) == array.size()) array.emplace_back();
  if (fits) array[std::stoul(index)] = text;
  variables_.set_element(name, fits ? std::move(array) : std::vector{unknown("$" + name)}, element,
                         text);
}

// `NAME=([KEY]=text [KEY2]=text)`: an associative array.
void Follower::set_keys(const std::string& name, const std::vector<std::string>& elements) {
  std::vector<std::string> values;
  for (const std::string& element : elements) {
    const std::size_t close = element.find("]=");
    if (close == std::string::npos) continue;
    values.push_back(element.substr(close + 2));
  }
  variables_.set(name, values);
  std::size_t next = 0;
  for (const std::string& element : elements) {
    const std::size_t close = element.find("]=");
    if (close == std::string::npos) continue;
    const std::string target = fmt::format("{}[{}]", name, element.substr(1, close - 1));
    variables_.set_element(name, values, element_of(target), values[next]);
    ++next;
  }
}

// An assignment by `$((NAME = 1))` or `${NAME:=word}`.
void Follower::assign_result(const std::string& name, const std::optional<std::string>& value) {
  if (name.find('[') != std::string::npos)
    return set_element(name, value.value_or(unknown("$" + name)));
  if (mode_ == Mode::maybe)
    variables_.set(name, {under_condition(name)});
  else
    variables_.set_text(name, value.value_or(unknown("$" + name)));
}

// Sets the variables that a builtin such as `read` fills to values that are unknown.
void Follower::forget(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (is_variable(name)) variables_.set(name, {unknown("$" + name)});
}

// `declare`, `typeset`, `local`, `readonly` and `export`, with these words not yet expanded.
void Follower::declare(const std::vector<std::string>& raw, std::size_t first) {
  std::string options;
  for (std::size_t i = first + 1; i < raw.size(); ++i) {
    // `export "NAME=text"`: what is expanded already is text.
    const bool is_raw = assignment_at(raw[i]).has_value();
    for (const std::string& word :
         is_raw ? std::vector<std::string>{raw[i]} : expander().words(raw[i])) {
      if (word.starts_with('-'))
        options += word.substr(1);
      else
        declare_name(raw[first], options, word, is_raw);
    }
  }
}

void Follower::declare_name(const std::string& builtin, const std::string& options,
                            const std::string& word, bool is_raw) {
  const std::string name = word.substr(0, word.find_first_of("=+["));
  if (!is_variable(name)) return;
  const auto has = [&](char option) { return options.find(option) != std::string::npos; };
  const bool declares = builtin == "local" || builtin == "declare" || builtin == "typeset";
  const bool is_local = declares && !locals_.empty() && !has('g');
  const auto equals = assignment_at(word);
  const std::string rest = equals ? word.substr(*equals + 1) : "";
  const bool is_array = is_raw && rest.starts_with('(');
  // The value may use the variable of the caller: `local A=$A`.
  const std::string text = is_raw && !is_array ? expander().text(rest) : rest;
  if (is_local && !locals_.back().contains(name)) {
    locals_.back()[name] = variables_.values_of(name);
    variables_.unset(name);
  }
  if (declares && has('A')) associative_.insert(name);
  if (declares && has('i')) integers_.insert(name);
  if (is_array || (equals && word.find('[') < *equals))
    assign(word);
  else if (equals)
    assign_text(name, text, word[*equals - 1] == '+');
  else if (is_local && !variables_.contains(name))
    variables_.set(name, {});
  // A reference to another variable is not followed.
  if (declares && has('n')) forget({name});
  if (has('x') || (builtin == "export" && !has('n'))) variables_.export_name(name);
}

// `let "A = 1" B+=2`.
void Follower::let(const std::vector<std::string>& words) {
  std::optional<std::int64_t> value;
  for (std::size_t i = 1; i < words.size(); ++i) value = expander().value_of(words[i]);
  status_ = value ? Status(*value != 0) : std::nullopt;
}

// `read [-r] [-a] [-d ''] NAMES`: the fields of a here-document or of the text after `<<<`.
void Follower::read_here(const std::vector<std::string>& words, const Command& command) {
  const std::string letters = option_letters(words, 1);
  std::vector<std::string> names;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (!words[i].starts_with('-'))
      names.push_back(words[i]);
    else if (std::string_view("dnNptu").find(words[i].back()) != kNone)
      ++i;  // the value of the option
  }
  if (names.empty()) names.emplace_back("REPLY");
  // What comes from a file, a program or the user is unknown, also its end.
  if (!command.here || mode_ == Mode::maybe) {
    forget(names);
    status_ = std::nullopt;
    return;
  }
  std::string text = here_text(*command.here);
  if (letters.find('d') == std::string::npos) text.resize(std::min(text.find('\n'), text.size()));
  while (text.ends_with('\n')) text.pop_back();
  const bool splits = letters.find('a') != std::string::npos || names.size() > 1;
  if (!splits && !variables_.contains("IFS")) {
    text.erase(0, std::min(text.find_first_not_of(" \t\n"), text.size()));
    text.resize(text.find_last_not_of(" \t\n") + 1);
  }
  if (!splits) return variables_.set(names[0], {text});
  std::vector<std::string> fields = expander().fields(text);
  if (letters.find('a') != std::string::npos) return variables_.set(names[0], std::move(fields));
  // The last name would get the rest of the line as it stands.
  const bool has_rest = fields.size() > names.size();
  for (std::size_t i = 0; i < names.size(); ++i)
    variables_.set(names[i], {i < fields.size() ? fields[i] : ""});
  if (has_rest) forget({names.back()});
}

// ---- variables

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
