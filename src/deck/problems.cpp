#include "deck/problems.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core/error.hpp"

namespace trireme::deck {

bool Place::before(const Place& other) const {
  const auto rank = [](const Place& place) {
    const int line = place.line > 0 ? place.line : std::numeric_limits<int>::max();
    return std::make_tuple(place.source, line, place.column);
  };
  return rank(*this) < rank(other);
}

Problems::Problems(std::string filename, std::vector<std::string> overrides)
    : filename_(std::move(filename)), overrides_(std::move(overrides)) {}

void Problems::add(const Place& place, std::string message) {
  problems_.push_back({place, std::move(message)});
}

void Problems::raise() const {
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.place.before(b.place); });
  std::string text;
  for (const auto& [place, message] : sorted) {
    if (place.source > 0) {
      text += fmt::format("--set {}: {}\n", overrides_[place.source - 1], message);
    } else if (place.line > 0) {
      text += fmt::format("{}:{}:{}: {}\n", filename_, place.line, place.column, message);
    } else {
      text += fmt::format("{}: {}\n", filename_, message);
    }
  }
  throw DeckError("{}{}", text, closing_line(sorted.size()));
}

void Problems::raise_if_any() const {
  if (!empty()) raise();
}

std::string closing_line(std::size_t errors) {
  return fmt::format(
      "{} error{}; nothing was started. 'trireme-pretrain --help deck' lists every key.", errors,
      errors == 1 ? "" : "s");
}

}  // namespace trireme::deck
