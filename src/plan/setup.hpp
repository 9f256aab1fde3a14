// What the deck's sections mean to the modules below: the one place that translates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/bert/bert_split.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "deck/deck.hpp"
#include "grid/layout.hpp"
#include "model/families/registry.hpp"
#include "model/stage/stage_memory.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedules.hpp"
#include "pipeline/schedule.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::plan {

/// Size of the vocabulary, and where there is a tokenizer the id that ends a document and what
/// tells the tokenizer from others.
struct Vocabulary {
  std::int64_t size = 0;
  std::optional<std::int32_t> eod = {};
  std::optional<tokenizer::TokenizerIdentity> tokenizer = {};
  /// Null unless the deck's family is BERT and it has a tokenizer.
  std::shared_ptr<const data::BertVocabulary> bert = {};
};

/// The tokenizer files that the deck names; nothing when it names no type.
std::optional<tokenizer::TokenizerSpec> tokenizer_spec(const deck::Deck& deck);

/// model.vocab, or the size of the tokenizer's vocabulary. Reads the tokenizer's files when the
/// deck names them. Throws DeckError when neither is given or model.vocab is smaller than the
/// tokenizer's, or when a key of `data` needs the id that ends a document and there is none; and as
/// make_tokenizer does.
Vocabulary vocabulary(const deck::Deck& deck);

/// The size of vocabulary(), for a plan: where the tokenizer's files are not on this machine,
/// model.vocab. Throws as vocabulary(); its IoError names this way out.
std::int64_t planned_vocabulary(const deck::Deck& deck);

/// The layout; parallel.data must be resolved.
grid::Layout layout(const deck::Deck& deck);

/// The element types of all tensors of the run, from the precision section.
Precision precision(const deck::Deck& deck);

/// The type of the peak that MFU is a share of: the activations', also of runs with FP8 GEMMs,
/// whose MFU is comparable with others'.
DType mfu_type(const deck::Deck& deck);

/// The model that the deck describes, with this vocabulary. Throws as model::make_spec().
model::ModelSpec model_spec(const deck::Deck& deck, const Vocabulary& vocabulary);

/// What a rank's stage is made from: model_spec(), micro-batch, tensor ranks, type and recompute().
model::StageConfig stage_config(const deck::Deck& deck, const Vocabulary& vocabulary);

/// Bytes of what a stage of the pipeline sends to another for one micro-batch.
std::size_t message_bytes(const deck::Deck& deck);

/// The recompute section.
model::Recompute recompute(const deck::Deck& deck);

/// How training holds weights and gradients: parallel.zero and parallel.overlap.
model::StoreOptions store_options(const deck::Deck& deck);

/// The optimizer section, and parallel.zero and parallel.bucket.
optim::OptimizerConfig optimizer_config(const deck::Deck& deck);

/// Whether schedules advance by samples, as in Megatron-LM, and not by iterations.
bool counts_samples(const deck::Deck& deck);
/// The learning rate by samples (megatron) or iterations (v1): see optim::LearningRateSchedule.
optim::LearningRateSchedule learning_rate(const deck::Deck& deck);
/// The weight decay, from optimizer.weight_decay to schedule.weight_decay.end over the run.
optim::WeightDecaySchedule weight_decay(const deck::Deck& deck);

/// The precision.loss_scale section: a constant 1 without fp16 and a number.
optim::LossScaler loss_scaler(const deck::Deck& deck);

/// Micro-batches of batch.global, the largest batch, on each data rank; parallel.data must be
/// resolved.
int micro_batches(const deck::Deck& deck);

/// What the pipeline's schedule is made for; parallel.data must be resolved.
pipeline::PipelineShape pipeline_shape(const deck::Deck& deck);

/// How one part of the data is sampled. `samples` absent: one epoch.
data::GptBlendConfig split_config(const deck::Deck& deck, data::Split split,
                                  const Vocabulary& vocabulary,
                                  std::optional<std::int64_t> samples);

/// The same for model.family = bert.
data::BertSplitConfig bert_split_config(const deck::Deck& deck, data::Split split,
                                        const Vocabulary& vocabulary,
                                        std::optional<std::int64_t> samples);

/// What data::samples_wanted() asks of the whole run. An evaluation always takes batches of
/// batch.global samples, so that each says as much as any other.
data::RunLength run_length(const deck::Deck& deck);

/// Whether a run of this deck reads `split`: train always, valid when it evaluates, test when it
/// evaluates at the end; never a split of weight 0, unless it has its own datasets.
bool uses_split(const deck::Deck& deck, data::Split split);

}  // namespace trireme::plan
