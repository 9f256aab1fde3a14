#include "train/startup.hpp"

#include <nlohmann/json.hpp>

#include "deck/describe.hpp"
#include "deck/load.hpp"
#include "train/data_skip.hpp"
#include "train/devices.hpp"
#include "train/launch_checks.hpp"

namespace trireme::train {

data::BlendSummary summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                  data::Split split, data::GptBlendConfig& config) {
  const auto of = [&](std::int64_t samples) {
    config = plan::split_config(deck, split, vocabulary, samples);
    return data::summarize_blend(config);
  };
  const data::BlendSummary summary = of(data::samples_wanted(split, plan::run_length(deck)));
  if (split != data::Split::train) return summary;
  const deck::Progress end = deck::end_of_run(deck);
  const std::int64_t needed = end.samples + samples_to_skip(deck, RunState{}, end.iteration);
  return summary.samples < needed ? of(needed) : summary;
}

PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve) {
  check_same_deck(world, path, overrides);
  const std::string text = on_rank_zero(world, [&] {
    deck::Deck deck = deck::load(path, overrides, {.automatic = automatic_device()});
    resolve(deck, world.size());
    const plan::Vocabulary vocabulary = plan::vocabulary(deck);
    nlohmann::json message{{"deck", deck::print_deck(deck)}, {"vocab", vocabulary.size}};
    if (vocabulary.eod) message["eod"] = *vocabulary.eod;
    if (const auto& tokenizer = vocabulary.tokenizer)
      message["tokenizer"] = {{"type", tokenizer->type},
                              {"hash", tokenizer->hash},
                              {"vocab", tokenizer->vocab_size},
                              {"library", tokenizer->library}};
    return message.dump();
  });
  const auto message = nlohmann::json::parse(text);
  PreparedDeck prepared{.deck = deck::parse(message["deck"].get<std::string>(), path),
                        .vocabulary = {.size = message["vocab"].get<std::int64_t>()}};
  if (message.contains("eod")) prepared.vocabulary.eod = message["eod"].get<std::int32_t>();
  if (message.contains("tokenizer")) {
    const auto& tokenizer = message["tokenizer"];
    prepared.vocabulary.tokenizer = {.type = tokenizer["type"].get<std::string>(),
                                     .hash = tokenizer["hash"].get<std::uint64_t>(),
                                     .vocab_size = tokenizer["vocab"].get<std::int32_t>(),
                                     .library = tokenizer["library"].get<std::string>()};
  }
  return prepared;
}

std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  std::string text;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    data::GptBlendConfig config;
    const data::BlendSummary summary = summarize_data(deck, vocabulary, split, config);
    for (std::size_t i = 0; i < summary.datasets.size(); ++i) {
      const data::SplitSummary& dataset = summary.datasets[i];
      text += fmt::format("{:<10} {} documents, {} tokens; {} samples wanted: {} epoch{}{}\n",
                          data::name_of(split), dataset.documents.size(), dataset.tokens,
                          data::dataset_config(config, i).samples.value_or(dataset.samples),
                          dataset.epochs, dataset.epochs == 1 ? "" : "s",
                          config.single() ? "" : " of " + config.prefixes[i].string());
    }
  }
  return text;
}

}  // namespace trireme::train
