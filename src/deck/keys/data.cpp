// The keys of the data.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void data_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(data.train))
              .derived("needed to train", {})
              .noted()
              .help("Indexed dataset: the path of its .bin and .idx without the ending; [0.3, a, "
                    "0.7, "
                    "b] mixes two."),
          key(TRIREME_MEMBER(data.valid))
              .derived("a part of data.train", {})
              .noted()
              .help("Datasets of their own for validation, written like data.train."),
          key(TRIREME_MEMBER(data.test))
              .derived("a part of data.train", {})
              .noted()
              .help("Datasets of their own for tests, written like data.train."),
          key(TRIREME_MEMBER(data.split))
              .by_default("969,30,1")
              .at_least(0)
              .fixed()
              .help(
                  "Weights of train, valid and test in data.train; a part with datasets of its own "
                  "has none. A restart must leave train its share."),
          key(TRIREME_MEMBER(data.seed))
              .derived("run.seed", [](Deck& deck) { deck.data.seed = deck.run.seed; })
              .from(0, kMostSeed)
              .fixed()
              .help("Seed of the order of samples."),
          key(TRIREME_MEMBER(data.tokenizer.type))
              .built({"gpt2", "sentencepiece", "whitespace", "bytes"})
              .fixed()
              .help("Tokenizer; may be left out where model.vocab is given."),
          key(TRIREME_MEMBER(data.tokenizer.vocab))
              .noted()
              .help("Vocabulary file (gpt2, whitespace)."),
          key(TRIREME_MEMBER(data.tokenizer.merges)).noted().help("Merges file (gpt2)."),
          key(TRIREME_MEMBER(data.tokenizer.model)).noted().help("Model file (sentencepiece)."),
          key(TRIREME_MEMBER(data.corpora))
              .noted()
              .help("Names of datasets for data.train, valid and test: {wiki: "
                    "data/wiki_text_document}."),
          key(TRIREME_MEMBER(data.index_cache))
              .derived("beside the dataset", {})
              .help("Folder that keeps the sample indices."),
          key(TRIREME_MEMBER(data.index_files))
              .noted()
              .help("Common stem of existing Megatron index files (.npy) to use."),
          key(TRIREME_MEMBER(data.reset_positions))
              .by_default("false")
              .fixed()
              .help("Positions start again after each end of document."),
          key(TRIREME_MEMBER(data.reset_attention))
              .by_default("false")
              .fixed()
              .help("Attention stays within a document."),
          key(TRIREME_MEMBER(data.eod_loss))
              .by_default("true")
              .noted()
              .help("Count the loss at end-of-document tokens."),
          later("data.bert.mask_probability", "number")
              .by_default("0.15")
              .help("BERT: share of masked tokens."),
          later("data.bert.max_predictions", "whole number").help("BERT: most masked tokens."),
          later("data.bert.short_sequence", "number")
              .by_default("0.1")
              .help("BERT: share of short samples."),
          later("data.bert.sentence_task", "order or next").help("BERT: task of sentence pairs."),
      });
}

}  // namespace trireme::deck
