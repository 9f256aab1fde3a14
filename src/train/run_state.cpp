#include "train/run_state.hpp"

namespace trireme::train {

checkpoint::Attributes RunState::attributes() const {
  checkpoint::Attributes attributes = {{"iteration", iteration},
                                       {"consumed_samples", consumed_samples},
                                       {"applied_iterations", applied_iterations},
                                       {"applied_samples", applied_samples},
                                       {"skipped", skipped},
                                       {"nan", nan},
                                       {"bad_iterations", bad_iterations},
                                       {"loss_scale", loss_scale.scale},
                                       {"loss_scale_good_iterations", loss_scale.good_iterations},
                                       {"loss_scale_hysteresis_left", loss_scale.hysteresis_left},
                                       {"passed_samples", passed_samples},
                                       {"passed_through", passed_through}};
  if (!train_documents.empty()) attributes["train_documents"] = train_documents;
  if (!train_tokens.empty()) attributes["train_tokens"] = train_tokens;
  return attributes;
}

namespace {

/// Checkpoints from before there was a scaler have its scale alone.
optim::LossScaleState loss_scale_of(const checkpoint::Header& header) {
  optim::LossScaleState state{.scale = header.get<double>("loss_scale")};
  if (header.attributes.contains("loss_scale_hysteresis_left")) {
    state.good_iterations = header.get<std::int64_t>("loss_scale_good_iterations");
    state.hysteresis_left = header.get<std::int64_t>("loss_scale_hysteresis_left");
  }
  return state;
}

}  // namespace

RunState RunState::from(const checkpoint::Header& header) {
  const auto number = [&](const char* name) { return header.get<std::int64_t>(name); };
  // Checkpoints from before there was train.skip have passed over nothing, and so on.
  const auto number_or_zero = [&](const char* name) {
    return header.attributes.contains(name) ? number(name) : 0;
  };
  // Neither imported models nor checkpoints from before there was the attribute know of documents.
  const auto text_or_empty = [&](const char* name) {
    return header.attributes.contains(name) ? header.get<std::string>(name) : std::string();
  };
  return {.iteration = number("iteration"),
          .consumed_samples = number("consumed_samples"),
          .applied_iterations = number("applied_iterations"),
          .applied_samples = number("applied_samples"),
          .skipped = number("skipped"),
          .nan = number("nan"),
          .bad_iterations = number_or_zero("bad_iterations"),
          .loss_scale = loss_scale_of(header),
          .passed_samples = number_or_zero("passed_samples"),
          .passed_through = number_or_zero("passed_through"),
          .train_documents = text_or_empty("train_documents"),
          .train_tokens = text_or_empty("train_tokens")};
}

}  // namespace trireme::train
