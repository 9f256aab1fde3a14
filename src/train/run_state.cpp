#include "train/run_state.hpp"

namespace trireme::train {

checkpoint::Attributes RunState::attributes() const {
  return {{"iteration", iteration},
          {"consumed_samples", consumed_samples},
          {"applied_iterations", applied_iterations},
          {"applied_samples", applied_samples},
          {"skipped", skipped},
          {"nan", nan},
          {"loss_scale", 1.0}};
}

RunState RunState::from(const checkpoint::Header& header) {
  const auto number = [&](const char* name) { return header.get<std::int64_t>(name); };
  return {.iteration = number("iteration"),
          .consumed_samples = number("consumed_samples"),
          .applied_iterations = number("applied_iterations"),
          .applied_samples = number("applied_samples"),
          .skipped = number("skipped"),
          .nan = number("nan")};
}

}  // namespace trireme::train
