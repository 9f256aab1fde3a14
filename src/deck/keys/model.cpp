// The keys of the run and of the model.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void run_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(run.name))
              .derived("the deck file's name", {})
              .help("Name of the run."),
          key(TRIREME_MEMBER(run.output))
              .derived("runs/<run.name>",
                       [](Deck& deck) { deck.run.output = "runs/" + deck.run.name; })
              .help("The run folder: logs and checkpoints."),
          key(TRIREME_MEMBER(run.seed))
              .by_default("1234")
              .from(0, kMostSeed)
              .fixed()
              .help("Seed of initial weights and dropout."),
          key(TRIREME_MEMBER(run.device))
              .by_default("auto")
              .noted()
              .help("Where to compute; auto: on GPUs if there are any."),
          key(TRIREME_MEMBER(run.deterministic))
              .by_default("true")
              .built({"true"})
              .because("every backend is deterministic")
              .noted()
              .help("Repeated runs are bit-identical."),
          key(TRIREME_MEMBER(run.mixed_gpus))
              .by_default("false")
              .help("Allow GPUs of several kinds in one run; false: refuse to start on them."),
      });
}

void model_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
              {
                  key(TRIREME_MEMBER(model.family))
                      .by_default("gpt")
                      .built({"gpt"})
                      .fixed()
                      .help("Architecture of the model."),
                  key(TRIREME_MEMBER(model.layers))
                      .required()
                      .from(1, kMostLayers)
                      .fixed()
                      .help("Transformer layers."),
                  key(TRIREME_MEMBER(model.hidden))
                      .required()
                      .from(1, kMostWidth)
                      .fixed()
                      .help("Width of the residual stream; on GPUs at most 16384."),
                  key(TRIREME_MEMBER(model.heads))
                      .required()
                      .from(1, kMostWidth)
                      .fixed()
                      .help("Attention heads; divides model.hidden, on GPUs into 256 or less."),
                  key(TRIREME_MEMBER(model.ffn))
                      .derived("4 * model.hidden",
                               [](Deck& deck) { deck.model.ffn = 4 * deck.model.hidden; })
                      .from(1, 4 * kMostWidth)
                      .fixed()
                      .help("Width of the MLP."),
                  key(TRIREME_MEMBER(model.sequence))
                      .required()
                      .from(1, kMostSequence)
                      .unit("tokens")
                      .fixed()
                      .help("Tokens of a training sample."),
                  key(TRIREME_MEMBER(model.positions))
                      .derived("model.sequence",
                               [](Deck& deck) { deck.model.positions = deck.model.sequence; })
                      .from(1, kMostSequence)
                      .unit("tokens")
                      .fixed()
                      .help("Rows of the position embedding: the longest sequence."),
                  key(TRIREME_MEMBER(model.vocab))
                      .derived("the tokenizer's", {})
                      .from(1, kMostVocab)
                      .unit("tokens")
                      .noted()
                      .help("Vocabulary size without padding; a checkpoint fits one size only."),
                  key(TRIREME_MEMBER(model.dropout.attention))
                      .by_default("0.1")
                      .at_least(0)
                      .below(1)
                      .noted()
                      .help("Dropout of attention probabilities."),
                  key(TRIREME_MEMBER(model.dropout.hidden))
                      .by_default("0.1")
                      .at_least(0)
                      .below(1)
                      .noted()
                      .help("Dropout of embeddings and of each block's outputs."),
                  key(TRIREME_MEMBER(model.init_std))
                      .by_default("0.02")
                      .above(0)
                      .noted()
                      .help("Standard deviation of initial weights."),
                  key(TRIREME_MEMBER(model.layernorm_eps))
                      .by_default("1e-05")
                      .above(0)
                      .fixed()
                      .help("Added to the variance in layer norms."),
                  key(TRIREME_MEMBER(model.embedding_layernorm))
                      .by_default("false")
                      .fixed()
                      .help("A layer norm on the word embedding."),
                  key(TRIREME_MEMBER(model.tie_embeddings))
                      .by_default("true")
                      .built({"true"})
                      .fixed()
                      .help("The head uses the word embedding's weights."),
                  later("model.bert.binary_head", "true or false")
                      .by_default("true")
                      .help("BERT: the head that classifies sentence pairs."),
                  later("model.bert.post_norm", "true or false")
                      .by_default("false")
                      .help("BERT: layer norms after the residual sums."),
                  later("model.bert.deep_init", "true or false")
                      .by_default("false")
                      .help("BERT: initial weights scaled for deep models."),
              });
}

}  // namespace trireme::deck
