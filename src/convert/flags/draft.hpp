// A deck in the making: what each key gets, where that came from, and all there is to say.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "convert/flags/arguments.hpp"
#include "deck/deck.hpp"

namespace trireme::convert::flags {

/// Collects settings, and what could not become one.
class Draft {
 public:
  /// Sets `key` to `yaml`, as `given` says. A value that the key cannot have is an error there.
  void set(std::string_view key, const std::string& yaml, const Given& given);
  /// Sets `key` for another reason, told in `why`.
  void set(std::string_view key, const std::string& yaml, const std::string& why);
  bool has(std::string_view key) const { return settings_.contains(key); }

  /// Says that a flag becomes no key.
  void leave_out(const Given& given, std::string_view reason);

  /// What stops the conversion. The same said twice counts once.
  void error(const std::string& place, std::string message);
  void error(const Given& given, std::string_view message);
  /// What the user should know, but need not change.
  void note(const std::string& place, std::string message);

  /// Checks the deck as a whole, as far as its features are built, on `ranks` ranks when that is
  /// not 0: what is wrong becomes an error at `place`.
  void check_deck(const std::string& place, std::int64_t ranks);

  const std::vector<Remark>& errors() const { return errors_; }
  const std::vector<Remark>& notes() const { return notes_; }
  /// "recompute.granularity: full (--checkpoint-activations)", for each key that no program reads
  /// yet.
  std::vector<std::string> unbuilt() const;

  /// The deck, every key with its origin in a comment, under the lines of `title` as comments.
  std::string render(const std::vector<std::string>& title) const;

 private:
  struct Setting {
    std::string yaml;
    std::string origin;
    bool built = true;
  };

  void put(std::string_view key, const std::string& yaml, const std::string& origin,
           const std::string& place);
  std::string body(bool with_unbuilt) const;

  std::map<std::string, Setting, std::less<>> settings_;
  std::vector<Remark> left_out_;  ///< a flag, and the reason
  std::vector<Remark> errors_;
  std::vector<Remark> notes_;
};

}  // namespace trireme::convert::flags
