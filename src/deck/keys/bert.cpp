// The keys that only model.family = bert has. Their members are unset for another family.
#include "deck/keys/row.hpp"

namespace trireme::deck {
namespace {

bool is_bert(const Deck& deck) { return deck.model.family == Family::bert; }

bool is_bert(const Deck& deck, BertDialect dialect) {
  return is_bert(deck) && deck.data.bert.dialect == dialect;
}

/// Sets a member of model.bert to `value` for bert.
std::function<void(Deck&)> for_bert(std::optional<bool> BertModel::*member, bool value) {
  return [=](Deck& deck) {
    deck.model.bert.*member = is_bert(deck) ? std::optional(value) : std::nullopt;
  };
}

// The dialect's row comes first: the defaults of the others depend on it.

void derive_dialect(Deck& deck) {
  deck.data.bert.dialect.reset();
  if (is_bert(deck)) deck.data.bert.dialect = BertDialect::megatron;
}

void derive_mask_probability(Deck& deck) {
  deck.data.bert.mask_probability.reset();
  if (is_bert(deck, BertDialect::megatron) || is_bert(deck, BertDialect::v0))
    deck.data.bert.mask_probability = 0.15;
}

void derive_max_ngram(Deck& deck) {
  deck.data.bert.max_ngram.reset();
  if (is_bert(deck, BertDialect::megatron)) deck.data.bert.max_ngram = 3;
}

void derive_short_sequence(Deck& deck) {
  deck.data.bert.short_sequence.reset();
  if (is_bert(deck, BertDialect::megatron)) deck.data.bert.short_sequence = 0.1;
  if (is_bert(deck, BertDialect::v0)) deck.data.bert.short_sequence = 0.01;
}

void derive_sentence_task(Deck& deck) {
  std::optional<SentenceTask>& task = deck.data.bert.sentence_task;
  task.reset();
  if (!is_bert(deck)) return;
  task = !deck.model.bert.binary_head.value_or(true) ? SentenceTask::none
         : is_bert(deck, BertDialect::megatron)      ? SentenceTask::order
                                                     : SentenceTask::next;
}

}  // namespace

void bert_model_keys(std::vector<Key>& rows) {
  rows.insert(rows.end(),
              {
                  key(TRIREME_MEMBER(model.bert.binary_head))
                      .derived("true for bert", for_bert(&BertModel::binary_head, true))
                      .immutable()
                      .only(Family::bert)
                      .help("BERT: the head that classifies sentence pairs."),
                  key(TRIREME_MEMBER(model.bert.post_norm))
                      .derived("false for bert", for_bert(&BertModel::post_norm, false))
                      .immutable()
                      .only(Family::bert)
                      .help("BERT: layer norms after the residual sums, as in Devlin et al.; "
                            "false: before the sublayers, as in Megatron-LM."),
                  key(TRIREME_MEMBER(model.bert.deep_init))
                      .derived("false for bert", for_bert(&BertModel::deep_init, false))
                      .warn()
                      .only(Family::bert)
                      .help("BERT: initial weights of the output projections divided by sqrt(2 "
                            "layers)."),
              });
}

void bert_data_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(data.bert.dialect))
              .derived("megatron for bert", derive_dialect)
              .immutable()
              .only(Family::bert)
              .help(
                  "BERT: how samples are made: megatron: Megatron-LM's sentence pairs; v0: its "
                  "first release's; tfrecord: data.train names files of create_pretraining_data."),
          key(TRIREME_MEMBER(data.bert.mask_probability))
              .derived("0.15", derive_mask_probability)
              .above(0)
              .below(1)
              .immutable()
              .only(Family::bert)
              .help("BERT: share of tokens that are predicted (megatron, v0)."),
          key(TRIREME_MEMBER(data.bert.max_predictions))
              .derived("v0: mask_probability * sequence, rounded up to a multiple of 10", {})
              .at_least(1)
              .immutable()
              .only(Family::bert)
              .help("BERT: maximum of predicted tokens in a sample; tfrecord: the number in each "
                    "example."),
          key(TRIREME_MEMBER(data.bert.max_ngram))
              .derived("3", derive_max_ngram)
              .from(1, 7)
              .immutable()
              .only(Family::bert)
              .help("BERT: maximum of words that are masked together (megatron)."),
          key(TRIREME_MEMBER(data.bert.short_sequence))
              .derived("0.1; 0.01 for v0", derive_short_sequence)
              .from(0, 1)
              .immutable()
              .only(Family::bert)
              .help("BERT: share of samples with a random, shorter length (megatron, v0)."),
          key(TRIREME_MEMBER(data.bert.sentence_task))
              .derived("order; next for v0 and tfrecord; none without model.bert.binary_head",
                       derive_sentence_task)
              .immutable()
              .only(Family::bert)
              .help("BERT: what the sentence label says: the second segment is swapped with the "
                    "first (order), is of another document (next), or there is none."),
      });
}

}  // namespace trireme::deck
