// From the command line to a run that can start: the same on every rank, or one error for all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "deck/deck.hpp"
#include "plan/setup.hpp"
#include "train/collective.hpp"
#include "train/restart.hpp"

namespace trireme::train {

/// A deck checked against the number of ranks, with its vocabulary.
struct PreparedDeck {
  deck::Deck deck;
  plan::Vocabulary vocabulary;
};

/// Loads and checks the deck and the tokenizer on rank 0, and resolves the layout by `resolve`
/// (which gets the deck and the number of ranks), after check_same_deck(). Collective; throws
/// CollectiveError.
PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve);

/// Throws DataError or DeckError when a split that the run needs cannot give a sample; otherwise
/// one line for each split that is used: documents, tokens, epochs.
std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary);

/// What a run from the start takes of a split, and what train.skip passes over where the whole
/// epochs do not hold that, too: as a run opens it, by `config`. Throws as describe_data().
data::BlendSummary summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                  data::Split split, data::GptBlendConfig& config);

}  // namespace trireme::train
