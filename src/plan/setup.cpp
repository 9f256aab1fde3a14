#include "plan/setup.hpp"

#include <iterator>

#include "core/error.hpp"
#include "deck/deck.hpp"
#include "deck/load.hpp"
#include "kernels/attention.hpp"
#include "kernels/norms.hpp"

namespace trireme::plan {
namespace {

static_assert(deck::kMaxHiddenOnGpu == kernels::cuda::kMaxRowColumns);
static_assert(deck::kMaxHeadOnGpu == kernels::cuda::kMaxHead);

model::ZeroStage zero_stage(const deck::Deck& deck) {
  using enum model::ZeroStage;
  constexpr model::ZeroStage kStages[] = {none, optimizer_state, gradients, weights};
  TRIREME_CHECK(deck.parallel.zero >= 0 && deck.parallel.zero < std::ssize(kStages),
                "parallel.zero = {}", deck.parallel.zero);
  return kStages[deck.parallel.zero];
}

/// `length` in what the schedule's dialect counts.
std::int64_t schedule_length(const deck::Length& length, const deck::Deck& deck) {
  return counts_samples(deck) ? deck::in_samples(length, deck) : deck::in_iterations(length, deck);
}

/// Of a fraction of the decay, not rounded: Megatron-LM does not either.
double part_of_decay(const deck::Length& length, const deck::Deck& deck) {
  if (length.unit == deck::Unit::fraction)
    return length.value * static_cast<double>(schedule_length(deck.schedule.decay, deck));
  return static_cast<double>(schedule_length(length, deck));
}

/// The datasets that `split` has for itself, if any.
const std::optional<deck::Datasets>& own_datasets(const deck::Deck& deck, data::Split split) {
  static const std::optional<deck::Datasets> none;
  switch (split) {
    case data::Split::valid:
      return deck.data.valid;
    case data::Split::test:
      return deck.data.test;
    case data::Split::train:
      break;
  }
  return none;
}

/// What data.corpora calls `name`, else `name` itself.
std::string prefix_of(const deck::Deck& deck, const std::string& name) {
  if (!deck.data.corpora) return name;
  const auto corpus = deck.data.corpora->prefixes.find(name);
  return corpus == deck.data.corpora->prefixes.end() ? name : corpus->second;
}

/// Throws DeckError, naming the key, when one asks where documents end.
void require_no_eod(const deck::Deck& deck) {
  const deck::Data& data = deck.data;
  const char* key = data.reset_positions   ? "reset_positions = true"
                    : data.reset_attention ? "reset_attention = true"
                    : data.eod_loss        ? nullptr
                                           : "eod_loss = false";
  if (key)
    throw DeckError("data.{} needs the end-of-document token: give data.tokenizer one that has it",
                    key);
}

}  // namespace

std::optional<tokenizer::TokenizerSpec> tokenizer_spec(const deck::Deck& deck) {
  const deck::Tokenizer& keys = deck.data.tokenizer;
  if (!keys.type) return std::nullopt;
  return tokenizer::TokenizerSpec{.type = std::string(name_of(*keys.type)),
                                  .vocab = keys.vocab.value_or(""),
                                  .merges = keys.merges.value_or(""),
                                  .model = keys.model.value_or(""),
                                  .lowercase = keys.lowercase};
}

namespace {

/// The tokenizer of the deck; its errors name the keys that the files come from.
std::unique_ptr<tokenizer::Tokenizer> open_tokenizer(const tokenizer::TokenizerSpec& spec) {
  const std::pair<const char*, const std::filesystem::path&> files[] = {
      {"vocab", spec.vocab}, {"merges", spec.merges}, {"model", spec.model}};
  for (const auto& [key, path] : files) {
    std::error_code unknown;
    // encdec's model is the folder of jieba.
    if (spec.type != "encdec" && std::filesystem::is_directory(path, unknown))
      throw IoError("data.tokenizer.{}: '{}' is a folder: name a file in it", key, path.string());
    if (path.empty() || std::filesystem::exists(path, unknown) || unknown) continue;
    throw IoError(
        "data.tokenizer.{}: there is no file '{}' in '{}'; give its path from there, or "
        "an absolute one",
        key, path.string(), std::filesystem::current_path(unknown).string());
  }
  return tokenizer::make_tokenizer(spec);
}

Vocabulary size_and_eod(const deck::Deck& deck) {
  const auto spec = tokenizer_spec(deck);
  if (!spec) {
    if (!deck.model.vocab)
      throw DeckError(
          "model.vocab: give the size of the vocabulary, or data.tokenizer, which has one");
    return {.size = *deck.model.vocab, .eod = std::nullopt};
  }
  const auto tokenizer = open_tokenizer(*spec);
  const std::int64_t size = deck.model.vocab.value_or(tokenizer->vocab_size());
  if (size < tokenizer->vocab_size())
    throw DeckError(
        "model.vocab = {} is smaller than the {} ids of data.tokenizer; leave model.vocab out or "
        "give {} or more",
        size, tokenizer->vocab_size(), tokenizer->vocab_size());
  Vocabulary vocabulary{.size = size, .eod = tokenizer->eod(), .tokenizer = tokenizer->identity()};
  if (!model::family_of(deck).causal)
    vocabulary.bert =
        std::make_shared<const data::BertVocabulary>(data::bert_vocabulary(*tokenizer));
  return vocabulary;
}

}  // namespace

Vocabulary vocabulary(const deck::Deck& deck) {
  const Vocabulary found = size_and_eod(deck);
  if (!found.eod) require_no_eod(deck);
  return found;
}

std::int64_t planned_vocabulary(const deck::Deck& deck) {
  try {
    return vocabulary(deck).size;
  } catch (const IoError& error) {
    if (deck.model.vocab) return *deck.model.vocab;
    throw IoError("{}; with model.vocab=N the plan needs no tokenizer", error.what());
  }
}

grid::Layout layout(const deck::Deck& deck) {
  TRIREME_CHECK(deck.parallel.data.has_value(), "parallel.data is not resolved");
  const auto stages = deck::layers_per_stage(deck);
  return {.tensor = static_cast<int>(deck.parallel.tensor),
          .data = static_cast<int>(*deck.parallel.data),
          .pipeline = static_cast<int>(deck.parallel.pipeline),
          .partition = {stages.begin(), stages.end()},
          .chunks = static_cast<int>(deck.parallel.interleave)};
}

Precision precision(const deck::Deck& deck) {
  const auto compute = [&] {
    switch (deck.precision.compute) {
      case deck::Compute::fp32:
        return DType::f32;
      case deck::Compute::bf16:
        return DType::bf16;
      case deck::Compute::fp16:
        return DType::f16;
    }
    throw InternalError("unknown precision.compute");
  };
  Precision precision = mixed_precision(compute());
  if (deck.precision.gradients == deck::GradientPrecision::same)
    precision.gradients = precision.weights;
  if (deck.precision.gemm == deck::GemmPrecision::fp8) {
    precision.gemm = DType::float8_e4m3;
    precision.gemm_gradients = deck.precision.fp8.backward == deck::Fp8Type::e4m3
                                   ? DType::float8_e4m3
                                   : DType::float8_e5m2;
  }
  return precision;
}

DType mfu_type(const deck::Deck& deck) { return precision(deck).activations; }

model::ModelSpec model_spec(const deck::Deck& deck, const Vocabulary& vocabulary) {
  model::ModelSpec spec = model::make_spec(deck, {.size = vocabulary.size, .eod = vocabulary.eod});
  const deck::Fp8& fp8 = deck.precision.fp8;
  const std::int64_t first = fp8.first_layers.value_or(0);
  const std::int64_t end = spec.layers() - fp8.last_layers.value_or(0);
  for (std::int64_t layer = 0; layer < spec.layers(); ++layer) {
    spec.blocks[layer].fp8 = first <= layer && layer < end;
    spec.blocks[layer].fp8_blocks = fp8.recipe == deck::Fp8Recipe::block;
  }
  return spec;
}

model::StageConfig stage_config(const deck::Deck& deck, const Vocabulary& vocabulary) {
  return {.spec = model_spec(deck, vocabulary),
          .micro_batch = deck.batch.micro,
          .tensor_ranks = static_cast<int>(deck.parallel.tensor),
          .precision = precision(deck),
          .sequence_parallel = deck.parallel.sequence,
          .fp32_embedding = deck.precision.looks_up_master_weights(),
          .recompute = recompute(deck),
          .shares_fp8_weights = deck.parallel.zero >= 3};
}

std::size_t message_bytes(const deck::Deck& deck) {
  const model::LayerSizes sizes = stage_config(deck, {}).sizes();
  return static_cast<std::size_t>(sizes.shard_shape().size()) *
         size_of(sizes.precision.activations);
}

model::Recompute recompute(const deck::Deck& deck) {
  using What = model::Recompute::What;
  switch (deck.recompute.granularity) {
    case deck::Granularity::none:
      return {};
    case deck::Granularity::selective:
      return {.what = What::norms};
    case deck::Granularity::full:
      break;
  }
  const bool block = deck.recompute.method == deck::RecomputeMethod::block;
  return {.what = block ? What::block : What::uniform,
          .layers = static_cast<int>(*deck.recompute.layers),
          .partition = deck.recompute.partition,
          .offload = deck.recompute.offload};
}

model::StoreOptions store_options(const deck::Deck& deck) {
  return {.gradients = true,
          .zero = zero_stage(deck),
          .overlap_weights = deck.parallel.overlap.parameters,
          .overlap_gradients = deck.parallel.overlap.gradients};
}

/// The factors of learning rates. Under muP those of matrices that Adam updates fall with the
/// width; Muon's updates have the same spectrum at every width.
deck::GroupFactors rates(const deck::Deck& deck) {
  deck::GroupFactors rate = deck.optimizer.rate;
  const bool is_adam = deck.optimizer.type == deck::OptimizerType::adamw ||
                       deck.optimizer.type == deck::OptimizerType::adam;
  if (deck.model.mup.base && is_adam)
    rate.matrices *=
        static_cast<double>(*deck.model.mup.base) / static_cast<double>(deck.model.hidden);
  return rate;
}

optim::OptimizerConfig optimizer_config(const deck::Deck& deck) {
  return {.type = deck.optimizer.type,
          .beta1 = deck.optimizer.beta1,
          .beta2 = deck.optimizer.beta2,
          .eps = deck.optimizer.eps,
          .momentum = deck.optimizer.momentum.value_or(0.0),
          .muon_scale = deck.optimizer.muon.scale.value_or(deck::MuonScale::match_rms),
          .nesterov = deck.optimizer.muon.nesterov.value_or(true),
          .muon_bf16 = deck.run.device == deck::Device::cuda,
          .rate = rates(deck),
          .decay = deck.optimizer.decay,
          .layer_norms = deck.log.norms == deck::LogNorms::layers,
          .clip = deck.optimizer.clip,
          .zero = zero_stage(deck),
          .bucket = deck.parallel.bucket,
          .overlap_gradients = deck.parallel.overlap.gradients,
          .overlap_parameters = deck.parallel.overlap.parameters};
}

bool counts_samples(const deck::Deck& deck) {
  return deck.schedule.dialect == deck::ScheduleDialect::megatron;
}

optim::LearningRateSchedule learning_rate(const deck::Deck& deck) {
  const deck::Schedule& schedule = deck.schedule;
  const deck::RangeTest& test = schedule.range_test;
  return optim::LearningRateSchedule(
      {.type = schedule.type,
       .dialect = schedule.dialect,
       .peak = schedule.peak.value_or(0),
       .minimum = schedule.minimum,
       .warmup = part_of_decay(schedule.warmup, deck),
       .decay = schedule_length(schedule.decay, deck),
       .range_test = {.step = test.step ? schedule_length(*test.step, deck) : 1,
                      .rate = test.rate.value_or(1),
                      .staircase = test.staircase.value_or(false)},
       .wsd = {.length = schedule.wsd.decay ? part_of_decay(*schedule.wsd.decay, deck) : 0,
               .shape = schedule.wsd.shape.value_or(optim::WsdShape::linear)}});
}

optim::LossScaler loss_scaler(const deck::Deck& deck) {
  const deck::LossScale& scale = deck.precision.loss_scale;
  if (!deck::is_dynamic(deck.precision))
    return optim::LossScaler({.initial = scale.value.value_or(1.0)});
  return optim::LossScaler({.dynamic = true,
                            .dialect = scale.dialect.value_or(deck::LossScaleDialect::megatron),
                            .initial = scale.initial.value(),
                            .minimum = scale.minimum.value(),
                            .window = scale.window.value(),
                            .hysteresis = scale.hysteresis.value()});
}

optim::WeightDecaySchedule weight_decay(const deck::Deck& deck) {
  return optim::WeightDecaySchedule(
      {.type = deck.schedule.weight_decay.type,
       .start = deck.optimizer.weight_decay,
       .end = deck.schedule.weight_decay.end,
       .length = counts_samples(deck) ? deck.train.samples.value_or(deck::total_samples(deck))
                                      : deck::total_iterations(deck)});
}

int micro_batches(const deck::Deck& deck) {
  return static_cast<int>(deck.batch.global / (deck.batch.micro * deck.parallel.data.value()));
}

pipeline::PipelineShape pipeline_shape(const deck::Deck& deck) {
  return {.kind = deck.parallel.schedule,
          .stages = static_cast<int>(deck.parallel.pipeline),
          .chunks = static_cast<int>(deck.parallel.interleave),
          .micro_batches = micro_batches(deck)};
}

data::GptBlendConfig split_config(const deck::Deck& deck, data::Split split,
                                  const Vocabulary& vocabulary,
                                  std::optional<std::int64_t> samples) {
  const auto& own = own_datasets(deck, split);
  const deck::Datasets& datasets = own ? *own : deck.data.train.value();
  data::GptBlendConfig config{
      .weights = datasets.weights,
      .common = {.split_weights = own ? std::vector<double>{} : deck::effective_split(deck),
                 .split = split,
                 .samples = samples,
                 .seed = deck.data.seed,
                 .format = {.sequence = deck.model.sequence,
                            .vocab = vocabulary.size,
                            .eod = vocabulary.eod,
                            .eod_loss = deck.data.eod_loss},
                 .index_cache = deck.data.index_cache.value_or(""),
                 .index_files = deck.data.index_files.value_or("")}};
  for (const std::string& name : datasets.names) config.prefixes.push_back(prefix_of(deck, name));
  return config;
}

data::BertSplitConfig bert_split_config(const deck::Deck& deck, data::Split split,
                                        const Vocabulary& vocabulary,
                                        std::optional<std::int64_t> samples) {
  const auto& own = own_datasets(deck, split);
  const deck::Datasets& datasets = own ? *own : deck.data.train.value();
  const deck::BertData& keys = deck.data.bert;
  data::BertSplitConfig config{
      .dialect = keys.dialect.value(),
      .weights = datasets.weights,
      .common = {.split_weights = own ? std::vector<double>{} : deck::effective_split(deck),
                 .split = split,
                 .samples = samples,
                 .seed = deck.data.seed,
                 .pairs = keys.sentence_task != deck::SentenceTask::none,
                 .format = {.sequence = deck.model.sequence,
                            .max_predictions = keys.max_predictions,
                            .vocabulary = vocabulary.bert},
                 .index_cache = deck.data.index_cache.value_or(""),
                 .index_files = deck.data.index_files.value_or("")},
      .vocab = vocabulary.size};
  // Unset where the dialect does without.
  if (keys.mask_probability) config.common.format.mask_probability = *keys.mask_probability;
  if (keys.max_ngram) config.common.format.max_ngram = *keys.max_ngram;
  if (keys.short_sequence) config.common.short_probability = *keys.short_sequence;
  for (const std::string& name : datasets.names) config.names.push_back(prefix_of(deck, name));
  return config;
}

data::RunLength run_length(const deck::Deck& deck) {
  const deck::Progress end = deck::end_of_run(deck);
  const auto& every = deck.evaluate.every;
  return {.train_samples = deck.train.samples.value_or(end.samples),
          .evaluations = every ? deck::BatchSizes(deck.batch).times_reached(*every, end) : 0,
          .evaluation_samples = deck.evaluate.iterations * deck.batch.global};
}

bool uses_split(const deck::Deck& deck, data::Split split) {
  // A part that is left nothing is found where it is opened.
  if (split == data::Split::train) return true;
  if (split == data::Split::test) return deck::has_test_part(deck) && deck.evaluate.at_end;
  return deck::has_valid_part(deck) && (deck.evaluate.every || deck.evaluate.at_end);
}

}  // namespace trireme::plan
