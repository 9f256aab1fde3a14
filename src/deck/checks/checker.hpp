// The checks that involve more than one key, a group a method.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "deck/checks.hpp"

namespace trireme::deck {

/// Adds a problem for each rule that the values of a deck break.
class Checker {
 public:
  /// `given` tells which keys the deck has, and where. All must outlive this.
  Checker(const Deck& deck, const Given& given, Problems& problems)
      : deck_(deck), given_(given), problems_(problems) {}

  // Each looks at the keys of its name, and at those of other sections that they must fit.
  void model();
  void layout();
  void pipeline();
  void batch_and_length();
  void rampup();
  void skipped_data();
  void schedule();
  void range_test();
  void tokenizer();
  /// Without options.need_data a deck need not name its data.
  void data(const LoadOptions& options);
  void checkpoints();
  void device();
  void optimizer();
  void loss_scale();
  void recompute();

 private:
  using Paths = std::initializer_list<std::string_view>;

  void gpu_kernels();

  /// The override that gives one of `paths`, else the first of them that the deck gives.
  Place place_of(Paths paths) const;

  /// Reports `message` unless the rule holds or one of the keys is bad by itself.
  void require(bool holds, Paths paths, const std::function<std::string()>& message);

  /// How an override takes that one of `paths` out of the deck which `message` asks to leave out,
  /// or which says the same as an override does: the first, or whichever the deck has. Else "".
  std::string way_out(Paths paths, std::string_view message) const;

  const Deck& deck_;
  const Given& given_;
  Problems& problems_;
};

}  // namespace trireme::deck
