#include "deck/deck.hpp"

#include <cmath>

#include "core/error.hpp"
#include "deck/batch_sizes.hpp"

namespace trireme::deck {

std::int64_t total_iterations(const Deck& deck) { return end_of_run(deck).iteration; }

std::int64_t total_samples(const Deck& deck) { return end_of_run(deck).samples; }

std::vector<double> effective_split(const Deck& deck) {
  std::vector<double> split = deck.data.split;
  if (deck.data.valid && split.size() > 1) split[1] = 0;
  if (deck.data.test && split.size() > 2) split[2] = 0;
  return split;
}

bool has_valid_part(const Deck& deck) {
  return deck.data.valid || (deck.data.split.size() > 1 && deck.data.split[1] > 0);
}

bool has_test_part(const Deck& deck) {
  return deck.data.test || (deck.data.split.size() > 2 && deck.data.split[2] > 0);
}

std::int64_t in_samples(const Length& length, const Deck& deck) {
  switch (length.unit) {
    case Unit::samples:
      return static_cast<std::int64_t>(length.value);
    case Unit::iterations:
      return BatchSizes(deck.batch).advance({}, static_cast<std::int64_t>(length.value)).samples;
    case Unit::fraction: {
      const auto decay = static_cast<double>(in_samples(deck.schedule.decay, deck));
      return static_cast<std::int64_t>(length.value * decay);
    }
    case Unit::seconds:
    case Unit::minutes:
    case Unit::hours:
      break;
  }
  throw InternalError("{} {} is a time, not a number of samples", length.value,
                      name_of(length.unit));
}

std::int64_t in_iterations(const Length& length, const Deck& deck) {
  if (length.unit == Unit::iterations) return static_cast<std::int64_t>(length.value);
  return BatchSizes(deck.batch).reach({}, in_samples(length, deck)).iteration;
}

double in_seconds(const Length& length) {
  TRIREME_CHECK(
      length.unit == Unit::seconds || length.unit == Unit::minutes || length.unit == Unit::hours,
      "{} {} is not a time", length.value, name_of(length.unit));
  const double seconds_each = length.unit == Unit::hours     ? 3600
                              : length.unit == Unit::minutes ? 60
                                                             : 1;
  return length.value * seconds_each;
}

bool is_dynamic(const Precision& precision) {
  return precision.compute == Compute::fp16 && !precision.loss_scale.value;
}

std::vector<std::int64_t> layers_per_stage(const Deck& deck) {
  if (deck.parallel.partition) return *deck.parallel.partition;
  const std::int64_t stages = deck.parallel.pipeline;
  return std::vector<std::int64_t>(stages, deck.model.layers / stages);
}

}  // namespace trireme::deck
