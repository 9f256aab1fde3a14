// How a row of the table of keys is written: key(...), later(...) or for_sweep(...), then what
// describes it; and the groups of rows, with the bounds that they share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "deck/keys/schema.hpp"

/// The two arguments of key(): a path, spelt like the member, and the member.
#define TRIREME_MEMBER(member) \
#member, [](auto& deck) -> auto& { return deck.member; }

namespace trireme::deck {

// Bounds that keep every product of the program within 64 bits.
inline constexpr double kMaxLayers = 10'000;
inline constexpr double kMaxWidth = 1 << 20;
inline constexpr double kMaxSequence = 1 << 24;
inline constexpr double kMaxVocab = 1 << 30;
inline constexpr double kMaxRanks = 1 << 20;
inline constexpr double kMaxBatch = 1 << 22;
inline constexpr double kMaxSteps = 1e12;
inline constexpr double kMaxSeed = 4294967295.0;

/// The units of a length that counts progress.
inline std::vector<Unit> counts() { return {Unit::iterations, Unit::samples}; }

/// The units of a length of time.
inline std::vector<Unit> times() { return {Unit::seconds, Unit::minutes, Unit::hours}; }

// Defaults of model.ffn, model.init and model.dropout, which depend on the family.
void derive_ffn(Deck& deck);
void derive_init(Deck& deck);
std::function<void(Deck&)> derive_dropout(double Dropout::*member);

// Each appends the rows of its sections.
void run_keys(std::vector<Key>& rows);
void model_keys(std::vector<Key>& rows);
void bert_model_keys(std::vector<Key>& rows);
void llama_keys(std::vector<Key>& rows);
void parallel_keys(std::vector<Key>& rows);
void arithmetic_keys(std::vector<Key>& rows);
void optimizer_keys(std::vector<Key>& rows);
void data_keys(std::vector<Key>& rows);
void bert_data_keys(std::vector<Key>& rows);
void train_keys(std::vector<Key>& rows);
void log_keys(std::vector<Key>& rows);
void cluster_keys(std::vector<Key>& rows);
void sweep_keys(std::vector<Key>& rows);

/// Whether T is an optional, and what it holds.
template <typename T>
struct Optional : std::false_type {
  using Value = T;
};
template <typename T>
struct Optional<std::optional<T>> : std::true_type {
  using Value = T;
};

/// Builds a row; each method sets what its name says.
class Row {
 public:
  explicit Row(Key key) : key_(std::move(key)) {}
  operator Key() && { return std::move(key_); }  // NOLINT: a row is a key under construction

  Row&& help(std::string text) && {
    key_.help = std::move(text);
    return std::move(*this);
  }
  Row&& unit(std::string text) && {
    key_.unit = std::move(text);
    for (const char* counted : {"iterations", "samples", "elements"})
      key_.rules.counts |= key_.unit == counted;
    return std::move(*this);
  }
  Row&& required() && {
    key_.required = true;
    return std::move(*this);
  }
  Row&& by_default(std::string yaml) && {
    key_.fallback = std::move(yaml);
    return std::move(*this);
  }
  Row&& derived(std::string words, std::function<void(Deck&)> derive) && {
    key_.fallback_words = std::move(words);
    key_.derive = std::move(derive);
    return std::move(*this);
  }
  Row&& from(double low, double high) && {
    key_.rules.range = {low, high, false, false};
    return std::move(*this);
  }
  Row&& at_least(double low) && {
    key_.rules.range.low = low;
    return std::move(*this);
  }
  Row&& above(double low) && {
    key_.rules.range.low = low;
    key_.rules.range.low_open = true;
    return std::move(*this);
  }
  Row&& below(double high) && {
    key_.rules.range.high = high;
    key_.rules.range.high_open = true;
    return std::move(*this);
  }
  Row&& units(std::vector<Unit> units) && {
    key_.rules.units = std::move(units);
    return std::move(*this);
  }
  Row&& words(std::vector<std::string_view> words) && {
    key_.rules.list = std::move(words);
    return std::move(*this);
  }
  Row&& unset_word(std::string word) && {
    key_.rules.word = word;
    key_.fallback_words = std::move(word);
    return std::move(*this);
  }
  Row&& built(std::vector<std::string> values) && {
    key_.rules.built = values;
    key_.built = std::move(values);
    return std::move(*this);
  }
  Row&& only(Family family) && {
    key_.family = family;
    return std::move(*this);
  }
  Row&& because(std::string reason) && {
    key_.reason = std::move(reason);
    return std::move(*this);
  }
  Row&& warn() && {
    key_.restart = RestartRule::warn;
    return std::move(*this);
  }
  Row&& immutable() && {
    key_.restart = RestartRule::immutable;
    return std::move(*this);
  }

 private:
  Key key_;
};

/// The row of the member that `member` gets from a Deck; TRIREME_MEMBER gives both arguments.
template <typename Member>
Row key(std::string path, Member member) {
  using Stored = std::remove_reference_t<decltype(member(std::declval<Deck&>()))>;
  using Value = typename Optional<Stored>::Value;
  Key key;
  key.path = std::move(path);
  key.type = Codec<Value>::kType;
  if constexpr (std::is_enum_v<Value>) {
    const auto names = names_of(Value{});
    key.rules.list.assign(names.begin(), names.end());
  }
  key.read = [member](Deck& deck, const Item& item, const Rules& rules) {
    if constexpr (Optional<Stored>::value) {
      if (item.kind == Item::Kind::scalar && item.text == rules.word && !rules.word.empty()) {
        member(deck).reset();
        return;
      }
    }
    member(deck) = Codec<Value>::read(item, rules);
  };
  key.write = [member](const Deck& deck) -> std::string {
    if constexpr (Optional<Stored>::value) {
      return member(deck) ? Codec<Value>::write(*member(deck)) : "";
    } else {
      return Codec<Value>::write(member(deck));
    }
  };
  return Row(std::move(key));
}

/// A key whose feature is not built: no member holds it.
inline Row later(std::string path, std::string type) {
  Key key;
  key.path = std::move(path);
  key.type = std::move(type);
  key.unbuilt = true;
  return Row(std::move(key));
}

/// A key that trireme-sweep reads: the deck of a run does not hold it.
inline Row for_sweep(std::string path, std::string type) {
  Key key;
  key.path = std::move(path);
  key.type = std::move(type);
  key.of_sweep = true;
  return Row(std::move(key));
}

}  // namespace trireme::deck
