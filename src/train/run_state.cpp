#include "train/run_state.hpp"

#include <algorithm>

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
  if (abandoned > 0) attributes["abandoned"] = abandoned;
  if (spikes != SpikeHistory()) attributes["spikes"] = spikes.text();
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
          .spikes = header.attributes.contains("spikes")
                        ? SpikeHistory::from(header.get<std::string>("spikes"))
                        : SpikeHistory(),
          .abandoned = number_or_zero("abandoned"),
          .train_documents = text_or_empty("train_documents"),
          .train_tokens = text_or_empty("train_tokens")};
}

std::optional<deck::IterationRange> data_to_skip(const deck::Deck& deck, const RunState& state) {
  const std::int64_t next = state.iteration + 1;
  for (const auto& [first, last] : deck.train.skip)
    if (first <= next && next <= last && last > state.passed_through)
      return deck::IterationRange{std::max(next, state.passed_through + 1), last};
  return std::nullopt;
}

std::int64_t skip_data(const deck::Deck& deck, const deck::IterationRange& range, RunState& state) {
  const deck::Progress here = state.progress();
  const deck::Progress there =
      deck::BatchSizes(deck.batch).advance(here, range.last - range.first + 1);
  state.passed_samples += there.samples - here.samples;
  state.passed_through = range.last;
  return there.samples - here.samples;
}

std::int64_t samples_to_skip(const deck::Deck& deck, RunState state, std::int64_t last_iteration) {
  const deck::BatchSizes batches(deck.batch);
  std::int64_t samples = 0;
  for (const auto& [first, last] : deck.train.skip) {
    if (first > last_iteration) break;
    const std::int64_t iterations = std::max<std::int64_t>(first - 1 - state.iteration, 0);
    const deck::Progress before = batches.advance(state.progress(), iterations);
    state.iteration = before.iteration;
    state.consumed_samples = before.samples;
    if (const auto range = data_to_skip(deck, state)) samples += skip_data(deck, *range, state);
  }
  return samples;
}

}  // namespace trireme::train
