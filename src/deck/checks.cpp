#include "deck/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "deck/checks/checker.hpp"
#include "deck/schema.hpp"

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
  const std::string text = message();
  problems_.add(place_of(paths), text + way_out(paths, text));
}

std::string Checker::way_out(Paths paths, std::string_view message) const {
  const bool any = message.ends_with("give one");
  const bool first = message.ends_with(" out") || message.find("leave it out") != message.npos;
  if (place_of(paths).source == 0 || (!any && !first)) return "";
  const auto in_deck = [&](std::string_view path) {
    const auto given = given_.places.find(path);
    return given != given_.places.end() && given->second.source == 0 && find_key(path) != nullptr;
  };
  const auto end = any ? paths.end() : paths.begin() + 1;
  const auto found = std::find_if(paths.begin(), end, in_deck);
  return found == end ? "" : fmt::format(" ('{}=' takes it out of the deck)", *found);
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
