#include "train/datasets.hpp"

#include "data/gpt/gpt_split.hpp"

namespace trireme::train {

std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world) {
  return std::make_unique<data::GptDataset>(data::open_gpt_blend(
      plan::split_config(deck, split, vocabulary, samples),
      {.builds = world.rank() == 0, .barrier = [&world] { world.barrier(); }}));
}

}  // namespace trireme::train
