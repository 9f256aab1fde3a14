// Whether the datasets of a run belong to its tokenizer, and which tokens they hold.
#pragma once

#include <string>
#include <vector>

#include "data/token_scan.hpp"
#include "deck/deck.hpp"
#include "plan/setup.hpp"

namespace trireme::train {

/// Compares each dataset that the run reads with the tokenizer and the vocabulary of the deck: by
/// its PREFIX.json; without one, by the ids that `scan` meets. Returns notes for the user, a line
/// each. Throws DeckError, naming the key and both tokenizers, for a dataset of another tokenizer;
/// DataError for ids outside the vocabulary and damaged files; IoError.
std::vector<std::string> check_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                        data::TokenScan scan);

/// What tells the training data of a run from other data.
struct TrainingData {
  std::string documents;  ///< data::identify_documents(); "": not known
  /// Hashes of the documents' tokens: "sample H H ..." with one for each dataset, and "; all H H
  /// ..." where all tokens were read; "": not known.
  std::string tokens;
  std::vector<std::string> files;  ///< the .bin files that the hashes are of
};

/// That of the documents that the run trains on, for the checkpoints; `scan` says how many of their
/// tokens are read. Throws as describe_data().
TrainingData identify_training_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                    data::TokenScan scan);

/// The first of `now.files` whose tokens are others than those of `before`, a TrainingData's tokens
/// of the same documents; "data.train" where the hashes do not tell the file; "" when none is.
std::string changed_file(const std::string& before, const TrainingData& now);

}  // namespace trireme::train
