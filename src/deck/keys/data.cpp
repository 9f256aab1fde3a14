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
              .help("Dataset: the path of its .bin and .idx without the ending; [0.3, a, 0.7, b] "
                    "blends two."),
          key(TRIREME_MEMBER(data.valid))
              .derived("a part of data.train", {})
              .noted()
              .help("Separate datasets for validation, written like data.train."),
          key(TRIREME_MEMBER(data.test))
              .derived("a part of data.train", {})
              .noted()
              .help("Separate datasets for the test split, written like data.train."),
          key(TRIREME_MEMBER(data.split))
              .by_default("969,30,1")
              .at_least(0)
              .fixed()
              .help("Shares of train, valid and test in data.train; 0 for a split with separate "
                    "datasets. A restart must not change the share of train."),
          key(TRIREME_MEMBER(data.seed))
              .derived("run.seed", [](Deck& deck) { deck.data.seed = deck.run.seed; })
              .from(0, kMostSeed)
              .fixed()
              .help("Seed of the sample order."),
          key(TRIREME_MEMBER(data.tokenizer.type))
              .built({"gpt2", "sentencepiece", "wordpiece", "whitespace", "bytes"})
              .fixed()
              .help("Tokenizer; may be left out if model.vocab is given."),
          key(TRIREME_MEMBER(data.tokenizer.vocab))
              .noted()
              .help("Vocabulary file (gpt2, wordpiece, whitespace)."),
          key(TRIREME_MEMBER(data.tokenizer.merges)).noted().help("Merges file (gpt2)."),
          key(TRIREME_MEMBER(data.tokenizer.model)).noted().help("Model file (sentencepiece)."),
          key(TRIREME_MEMBER(data.tokenizer.lowercase))
              .fixed()
              .help("Whether the vocabulary is uncased: text is lower-cased and loses its accents "
                    "(wordpiece)."),
          key(TRIREME_MEMBER(data.corpora))
              .noted()
              .help("Short names of datasets for data.train, valid and test: {wiki: "
                    "data/wiki_text_document}."),
          key(TRIREME_MEMBER(data.index_cache))
              .derived("beside the dataset", {})
              .help("Folder that keeps the sample indices."),
          key(TRIREME_MEMBER(data.index_files))
              .noted()
              .help("Common stem of Megatron-LM's index files (.npy) to use."),
          key(TRIREME_MEMBER(data.reset_positions))
              .by_default("false")
              .fixed()
              .help("Positions restart after each end of document."),
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
          later("data.bert.max_predictions", "whole number")
              .help("BERT: maximum of masked tokens."),
          later("data.bert.short_sequence", "number")
              .by_default("0.1")
              .help("BERT: share of short samples."),
          later("data.bert.sentence_task", "order or next").help("BERT: task of sentence pairs."),
      });
}

}  // namespace trireme::deck
