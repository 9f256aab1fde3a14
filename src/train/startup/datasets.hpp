// The datasets that a run trains and evaluates on: opening them, whether they belong to the run's
// tokenizer, and which tokens they hold.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data/dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "deck/deck.hpp"
#include "plan/setup.hpp"

namespace trireme::train {
/// Opens `split` of the deck's data for `samples` samples (absent: one epoch) of the kind that the
/// model's family trains on. Collective over `world`, whose rank 0 builds the sample index; a rank
/// that throws does not reach the barrier, so the caller must end the others. Throws as
/// data::open_gpt_blend() and data::open_bert_split().
std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world);

/// Throws IoError that names the key (data.train, data.valid, data.test) and the file where a
/// dataset cannot be opened.
void require_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary);

/// As require_datasets(); throws DataError or DeckError when a split that the run needs cannot give
/// a sample. Otherwise returns one line for each split that is used: documents, tokens, epochs.
std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary);

/// One split of the deck's data.
struct SplitData {
  data::BlendSummary summary;
  std::vector<std::string> names;     ///< of the datasets or record files
  std::vector<std::int64_t> samples;  ///< that the run takes of each of summary.datasets
};

/// What a run from the start takes of a split, and what train.skip passes over where the whole
/// epochs do not hold that, too: as a run opens it. Throws as describe_data().
SplitData summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                         data::Split split);

/// Compares each dataset that the run reads with the tokenizer and the vocabulary of the deck: by
/// its PREFIX.json; without one, by the ids that `scan` meets. `progress` gets meters, null for
/// none. Returns notes for the user, a line each. Throws DeckError, naming the key and both
/// tokenizers, for a dataset of another tokenizer; DataError for ids outside the vocabulary and
/// damaged files; IoError.
std::vector<std::string> check_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                        data::TokenScan scan, std::FILE* progress = nullptr);

/// What tells the training data of a run from other data.
struct TrainingData {
  std::string documents;  ///< data::identify_documents(); "": not known
  /// Hashes of the documents' tokens: "sample H H ..." with one for each dataset, and "; all H H
  /// ..." where all tokens were read; "": not known.
  std::string tokens;
  std::vector<std::string> files;  ///< the .bin files that the hashes are of
};

/// That of the documents that the run trains on, for the checkpoints; `scan` says how many of their
/// tokens are read, `progress` as in check_datasets(). Throws as describe_data().
TrainingData identify_training_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                    data::TokenScan scan, std::FILE* progress = nullptr);

/// The first of `now.files` whose tokens are others than those of `before`, a TrainingData's tokens
/// of the same documents; "data.train" where the hashes do not tell the file; "" when none is.
std::string changed_file(const std::string& before, const TrainingData& now);

}  // namespace trireme::train
