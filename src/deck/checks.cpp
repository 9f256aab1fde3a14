#include "deck/checks.hpp"

#include <algorithm>
#include <functional>

#include "deck/checks/checker.hpp"

namespace trireme::deck {

Place Checker::place_of(Paths paths) const {
  Place place;
  for (const std::string_view path : paths) {
    const auto given = given_.places.find(path);
    if (given == given_.places.end()) continue;
    if (place.line == 0 || given->second.source > 0) place = given->second;
    if (place.source > 0) break;
  }
  return place;
}

void Checker::require(bool holds, Paths paths, const std::function<std::string()>& message) {
  const auto is_bad = [&](std::string_view path) { return given_.bad.contains(path); };
  if (holds || std::any_of(paths.begin(), paths.end(), is_bad)) return;
  problems_.add(place_of(paths), message());
}

void check_together(const Deck& deck, const Given& given, const LoadOptions& options,
                    Problems& problems) {
  Checker checker(deck, given, problems);
  checker.model();
  checker.layout();
  checker.pipeline();
  checker.batch_and_length();
  checker.rampup();
  checker.skipped_data();
  checker.schedule();
  checker.tokenizer();
  checker.data(options);
  checker.checkpoints();
  checker.device();
  checker.optimizer();
  checker.loss_scale();
  checker.recompute();
}

}  // namespace trireme::deck
