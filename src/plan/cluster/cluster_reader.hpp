// Sections of a cluster file: each key is asked for once; what is left over is unknown.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/document.hpp"
#include "deck/value.hpp"

namespace trireme::plan {

inline constexpr deck::Range kPositive{.low = 0, .low_open = true};
inline constexpr deck::Range kCount{.low = 1, .high = 1 << 20};

/// A mapping of the file. Problems are collected; what could not be read has the fallback.
class Section {
 public:
  /// `name` is its path, "" for the file.
  Section(const deck::Item& item, std::string name, deck::Problems& problems);

  bool has(const std::string& key);
  /// The value of `key`, which must lie in `range`; the fallback where it is not given.
  double number(const std::string& key, double fallback, const deck::Range& range);
  std::int64_t whole(const std::string& key, std::int64_t fallback, const deck::Range& range);
  std::string text(const std::string& key, const std::string& fallback);
  bool flag(const std::string& key, bool fallback);
  /// One of an enum's names; the first where it is not given.
  template <typename Enum>
  Enum choice(const std::string& key) {
    const auto names = names_of(Enum{});
    return static_cast<Enum>(choice_of(key, {names.begin(), names.end()}));
  }
  /// "80GB", "40 GiB": bytes.
  double memory(const std::string& key);
  /// "25 GB/s", "200 Gbit/s": bytes per second.
  double rate(const std::string& key);
  /// The items of a list, none where it is not given.
  std::vector<const deck::Item*> list(const std::string& key);
  /// A section of this one, or nullptr.
  const deck::Item* section(const std::string& key);

  /// Adds a problem unless `key` is given.
  void require(const std::string& key, const std::string& what);
  /// Adds a problem at the value of `key`.
  void refuse(const std::string& key, const std::string& why);
  /// Adds a problem for each key that was never asked for, with the nearest of those that were.
  void finish();

 private:
  const deck::Item* find(const std::string& key);
  std::size_t choice_of(const std::string& key, const std::vector<std::string_view>& names);
  std::string path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  template <typename Read>
  auto read(const std::string& key, Read read) -> std::optional<decltype(read(*find(key)))>;

  const deck::Item& item_;
  std::string name_;
  deck::Problems& problems_;
  std::set<std::string> known_;
};

/// Parses `text` with `read`; the errors of the file, with a closing line of this subject.
template <typename Read>
auto parse_file(const std::string& text, const std::filesystem::path& path, Read read) {
  deck::Problems problems(path.string(), {});
  const deck::Item item = deck::read_yaml(text, 0, problems);
  try {
    problems.raise_if_any();
    auto result = read(item, problems);
    problems.raise_if_any();
    return result;
  } catch (const deck::InvalidDeck& invalid) {
    std::string lines;
    for (const auto& line : invalid.lines()) lines += line.text + "\n";
    throw DeckError("{}{}; nothing was planned. 'trireme-plan --help cluster' lists every key.",
                    lines, counted(static_cast<std::int64_t>(invalid.lines().size()), "error"));
  }
}

}  // namespace trireme::plan
