// The errors of a deck, collected and reported together.
#pragma once

#include <string>
#include <vector>

namespace trireme::deck {

/// Where something stands. Source 0 is the deck file, k > 0 the k-th override. Lines and columns
/// count from 1; 0 means no particular place in the source.
struct Place {
  int source = 0;
  int line = 0;
  int column = 0;

  /// Order of the report: the file by line and column, what has no place in it, then overrides.
  bool before(const Place& other) const;
};

/// Collects errors with their places.
class Problems {
 public:
  /// `filename` names source 0, overrides[k - 1] source k.
  Problems(std::string filename, std::vector<std::string> overrides);

  void add(const Place& place, std::string message);
  bool empty() const { return problems_.empty(); }

  /// Throws one DeckError with a line for each error, sorted by place, and the closing line.
  [[noreturn]] void raise() const;
  void raise_if_any() const;

 private:
  struct Problem {
    Place place;
    std::string message;
  };

  std::string filename_;
  std::vector<std::string> overrides_;
  std::vector<Problem> problems_;
};

/// "3 errors; nothing was started. 'trireme-pretrain --help deck' lists every key."
std::string closing_line(std::size_t errors);

}  // namespace trireme::deck
