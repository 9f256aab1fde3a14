// The keys of the run, the model and its data.
#include "core/philox.hpp"
#include "deck/keys/row.hpp"

namespace trireme::deck {

namespace {

void derive_mup_embedding(Deck& deck) {
  deck.model.mup.embedding.reset();
  if (deck.model.mup.base) deck.model.mup.embedding = 1.0;
}

}  // namespace

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
              .from(0, kMaxSeed)
              .immutable()
              .help("Seed of initial weights and dropout."),
          key(TRIREME_MEMBER(run.device))
              .by_default("auto")
              .warn()
              .help("Where to compute; auto: on GPUs if there are any."),
          key(TRIREME_MEMBER(run.deterministic))
              .by_default("true")
              .built({"true"})
              .because("every backend is deterministic")
              .warn()
              .help("Repeated runs are bit-identical."),
          key(TRIREME_MEMBER(run.mixed_gpus))
              .by_default("false")
              .help("Allow GPUs of several kinds in one run; false: refuse to start on them."),
      });
}

void model_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(model.family))
              .by_default("gpt")
              .immutable()
              .help("Architecture of the model."),
          key(TRIREME_MEMBER(model.layers))
              .required()
              .from(1, kMaxLayers)
              .immutable()
              .help("Transformer layers."),
          key(TRIREME_MEMBER(model.hidden))
              .required()
              .from(1, kMaxWidth)
              .immutable()
              .help("Width of the residual stream; on GPUs at most 16384."),
          key(TRIREME_MEMBER(model.heads))
              .required()
              .from(1, kMaxWidth)
              .immutable()
              .help("Attention heads, of llama the query heads; divides model.hidden, on "
                    "GPUs into 256 or less."),
          key(TRIREME_MEMBER(model.ffn))
              .derived("4 * model.hidden; for llama 8/3, rounded up to 256", derive_ffn)
              .from(1, 4 * kMaxWidth)
              .immutable()
              .help("Width of the MLP."),
          key(TRIREME_MEMBER(model.sequence))
              .required()
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .help("Tokens of a training sample."),
          key(TRIREME_MEMBER(model.positions))
              .derived("model.sequence",
                       [](Deck& deck) { deck.model.positions = deck.model.sequence; })
              .from(1, kMaxSequence)
              .unit("tokens")
              .immutable()
              .help("The longest sequence: rows of the position embedding."),
          key(TRIREME_MEMBER(model.vocab))
              .derived("the tokenizer's", {})
              .from(1, kMaxVocab)
              .unit("tokens")
              .warn()
              .help("Vocabulary size without padding; a checkpoint fits one size only."),
          key(TRIREME_MEMBER(model.dropout.attention))
              .derived("0.1; 0 for llama", derive_dropout(&Dropout::attention))
              .at_least(0)
              .below(1)
              .warn()
              .help("Dropout of attention probabilities."),
          key(TRIREME_MEMBER(model.dropout.hidden))
              .derived("0.1; 0 for llama", derive_dropout(&Dropout::hidden))
              .at_least(0)
              .below(1)
              .warn()
              .help("Dropout of embeddings and of each block's outputs."),
          key(TRIREME_MEMBER(model.init))
              .derived("scaled; bert: normal without model.bert.deep_init", derive_init)
              .warn()
              .help("Standard deviation of the initial weights that end a sublayer: init_std / "
                    "sqrt(2 layers) (scaled: GPT-2, Megatron-LM), init_std / sqrt(2 (layer + 1)) "
                    "(depth), or init_std as of all others (normal: Hugging Face's Llama, Qwen, "
                    "Mistral, OLMo-2)."),
          key(TRIREME_MEMBER(model.init_std))
              .by_default("0.02")
              .above(0)
              .warn()
              .help("Standard deviation of initial weights."),
          key(TRIREME_MEMBER(model.init_cutoff))
              .from(1, kMaxNormalCutoff)
              .unit("standard deviations")
              .warn()
              .help("Initial weights are drawn from a normal distribution that is truncated there "
                    "(OLMo-2: 3, with model.init: normal); unset: not truncated."),
          key(TRIREME_MEMBER(model.z_loss))
              .by_default("0")
              .at_least(0)
              .warn()
              .help("Coefficient of the z-loss, the mean of each token's squared log-sum-exp, in "
                    "the loss that is trained; not in losses that are reported."),
          key(TRIREME_MEMBER(model.mup.base))
              .from(1, kMaxWidth)
              .immutable()
              .help("muP: the model.hidden at which learning rates and model.init_std were tuned. "
                    "Wider models scale them: matrices' Adam rates, matrices' variances and logits "
                    "by base / hidden."),
          key(TRIREME_MEMBER(model.mup.base_head))
              .derived("elements of a head of this model", {})
              .from(1, kMaxWidth)
              .immutable()
              .help("muP: elements of a head at the base; attention scores are q k sqrt(base_head) "
                    "/ head."),
          key(TRIREME_MEMBER(model.mup.embedding))
              .derived("1 with model.mup.base", derive_mup_embedding)
              .above(0)
              .immutable()
              .help(
                  "muP: factor of the embeddings' sum, tuned with the rates and the same at every "
                  "width."),
          key(TRIREME_MEMBER(model.layernorm_eps))
              .by_default("1e-05")
              .above(0)
              .immutable()
              .help("Added to the variance in layer norms, to the mean square in RMS norms."),
          key(TRIREME_MEMBER(model.embedding_layernorm))
              .by_default("false")
              .immutable()
              .help("A layer norm on the word embedding."),
          key(TRIREME_MEMBER(model.tie_embeddings))
              .by_default("true")
              .immutable()
              .help("The head uses the word embedding's weights."),
      });
}

void data_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(data.train))
              .derived("needed to train", {})
              .warn()
              .help("Dataset: the path of its .bin and .idx without the ending; [0.3, a, 0.7, b] "
                    "blends two."),
          key(TRIREME_MEMBER(data.valid))
              .derived("a part of data.train", {})
              .warn()
              .help("Separate datasets for validation, written like data.train."),
          key(TRIREME_MEMBER(data.test))
              .derived("a part of data.train", {})
              .warn()
              .help("Separate datasets for the test split, written like data.train."),
          key(TRIREME_MEMBER(data.split))
              .derived("969,30,1; 1,0,0 for data.bert.dialect = tfrecord",
                       [](Deck& deck) {
                         const bool records = deck.data.bert.dialect == BertDialect::tfrecord;
                         deck.data.split = records ? std::vector<double>{1, 0, 0}
                                                   : std::vector<double>{969, 30, 1};
                       })
              .at_least(0)
              .immutable()
              .help("Shares of train, valid and test in data.train; 0 for a split with separate "
                    "datasets. A restart must not change the share of train."),
          key(TRIREME_MEMBER(data.seed))
              .derived("run.seed", [](Deck& deck) { deck.data.seed = deck.run.seed; })
              .from(0, kMaxSeed)
              .immutable()
              .help("Seed of the sample order."),
          key(TRIREME_MEMBER(data.tokenizer.type))
              .immutable()
              .help("Tokenizer; may be left out if model.vocab is given."),
          key(TRIREME_MEMBER(data.tokenizer.vocab))
              .warn()
              .help("Vocabulary file (gpt2, wordpiece, encdec, whitespace)."),
          key(TRIREME_MEMBER(data.tokenizer.merges)).warn().help("Merges file (gpt2)."),
          key(TRIREME_MEMBER(data.tokenizer.model))
              .warn()
              .help("Model file (sentencepiece), tokenizer.json (bpe), or the folder of jieba, "
                    "which has "
                    "dict.txt (encdec)."),
          key(TRIREME_MEMBER(data.tokenizer.lowercase))
              .immutable()
              .help("Whether the vocabulary is uncased: text is lower-cased and loses its accents "
                    "(wordpiece)."),
          key(TRIREME_MEMBER(data.corpora))
              .warn()
              .help("Short names of datasets for data.train, valid and test: {wiki: "
                    "data/wiki_text_document}."),
          key(TRIREME_MEMBER(data.index_cache))
              .derived("in the folder of the dataset", {})
              .help("Folder that keeps the sample indices."),
          key(TRIREME_MEMBER(data.index_files))
              .warn()
              .help("Common stem of Megatron-LM's index files (.npy) to use."),
          key(TRIREME_MEMBER(data.reset_positions))
              .by_default("false")
              .immutable()
              .help("Positions restart after each end of document."),
          key(TRIREME_MEMBER(data.reset_attention))
              .by_default("false")
              .immutable()
              .help("Attention stays within a document."),
          key(TRIREME_MEMBER(data.eod_loss))
              .by_default("true")
              .warn()
              .help("Count the loss at end-of-document tokens."),
      });
}

}  // namespace trireme::deck
