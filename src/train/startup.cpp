#include "train/startup.hpp"

#include <nlohmann/json.hpp>

#include "deck/describe.hpp"
#include "deck/load.hpp"
#include "train/devices.hpp"

namespace trireme::train {
namespace {

/// `text` of rank 0 on every rank.
std::string broadcast_text(comm::MpiCommunicator& world, std::string text) {
  std::uint64_t size = text.size();
  world.broadcast(&size, sizeof size, 0);
  text.resize(size);
  world.broadcast(text.data(), size, 0);
  return text;
}

}  // namespace

std::string on_rank_zero(comm::MpiCommunicator& world, const std::function<std::string()>& work) {
  std::int32_t code = 0;
  std::string text;
  if (world.rank() == 0) {
    try {
      text = work();
    } catch (const Error& error) {
      code = static_cast<std::int32_t>(error.code());
      text = error.what();
    } catch (const std::exception& error) {
      code = static_cast<std::int32_t>(ExitCode::failure);
      text = error.what();
    }
  }
  world.broadcast(&code, sizeof code, 0);
  text = broadcast_text(world, std::move(text));
  if (code != 0) throw CollectiveError(static_cast<ExitCode>(code), text);
  return text;
}

PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve) {
  const std::string text = on_rank_zero(world, [&] {
    deck::Deck deck = deck::load(path, overrides, {.automatic = automatic_device()});
    resolve(deck, world.size());
    const plan::Vocabulary vocabulary = plan::vocabulary(deck);
    nlohmann::json message{{"deck", deck::print_deck(deck)}, {"vocab", vocabulary.size}};
    if (vocabulary.eod) message["eod"] = *vocabulary.eod;
    return message.dump();
  });
  const auto message = nlohmann::json::parse(text);
  PreparedDeck prepared{.deck = deck::parse(message["deck"].get<std::string>(), path),
                        .vocabulary = {.size = message["vocab"].get<std::int64_t>()}};
  if (message.contains("eod")) prepared.vocabulary.eod = message["eod"].get<std::int32_t>();
  return prepared;
}

std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  std::string text;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    const std::int64_t samples = data::samples_wanted(split, plan::run_length(deck));
    const data::GptBlendConfig config = plan::split_config(deck, split, vocabulary, samples);
    const data::BlendSummary summary = data::summarize_blend(config);
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
