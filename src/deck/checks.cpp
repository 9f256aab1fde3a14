#include "deck/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string_view>
#include <vector>

#include "deck/batch_problems.hpp"
#include "deck/divisors.hpp"
#include "deck/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {
namespace {

std::string try_divisors(std::int64_t number, std::int64_t near) {
  return "try " + divisor_list(number, near);
}

// `layers` over `stages`, as equal as can be: "3-3-2-2".
std::string even_partition(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> parts(stages, layers / stages);
  std::for_each_n(parts.begin(), layers % stages, [](std::int64_t& part) { ++part; });
  return fmt::format("{}", fmt::join(parts, "-"));
}

class Checker {
 public:
  Checker(const Deck& deck, const Given& given, Problems& problems)
      : deck_(deck), given_(given), problems_(problems) {}

  void model();
  void layout();
  void pipeline();
  void batch_and_length();
  void rampup();
  void skipped_data();
  void schedule();
  void range_test();
  void tokenizer();
  void data(const LoadOptions& options);
  void checkpoints();
  void device();
  void optimizer();
  void loss_scale();
  void recompute();

 private:
  using Paths = std::initializer_list<std::string_view>;

  // The override that gives one of `paths`, else the first of them that the deck gives.
  Place place_of(Paths paths) const {
    Place place;
    for (const std::string_view path : paths) {
      const auto given = given_.places.find(path);
      if (given == given_.places.end()) continue;
      if (place.line == 0 || given->second.source > 0) place = given->second;
      if (place.source > 0) break;
    }
    return place;
  }

  // Reports `message` unless the rule holds or one of the keys is bad by itself.
  void require(bool holds, Paths paths, const std::function<std::string()>& message) {
    const auto is_bad = [&](std::string_view path) { return given_.bad.contains(path); };
    if (holds || std::any_of(paths.begin(), paths.end(), is_bad)) return;
    problems_.add(place_of(paths), message());
  }

  const Deck& deck_;
  const Given& given_;
  Problems& problems_;
};

void Checker::model() {
  const Model& model = deck_.model;
  require(model.heads == 0 || model.hidden % model.heads == 0, {"model.heads", "model.hidden"},
          [&] {
            return fmt::format("model.heads = {} does not divide model.hidden = {} ({})",
                               model.heads, model.hidden, try_divisors(model.hidden, model.heads));
          });
  require(model.positions >= model.sequence, {"model.positions", "model.sequence"}, [&] {
    return fmt::format("model.positions = {} is less than model.sequence = {} (try {})",
                       model.positions, model.sequence, model.sequence);
  });
}

void Checker::layout() {
  const Model& model = deck_.model;
  const Parallel& parallel = deck_.parallel;
  const std::int64_t tensor = std::max<std::int64_t>(parallel.tensor, 1);
  const std::int64_t stages = std::max<std::int64_t>(parallel.pipeline, 1);
  const std::int64_t common = std::gcd(model.heads, model.ffn);
  require(model.heads % tensor == 0, {"parallel.tensor", "model.heads"}, [&] {
    return fmt::format("parallel.tensor = {} does not divide model.heads = {} ({})", tensor,
                       model.heads, try_divisors(common > 0 ? common : model.heads, tensor));
  });
  require(model.heads % tensor != 0 || model.ffn % tensor == 0,
          {"parallel.tensor", "model.ffn", "model.hidden", "model.heads"}, [&] {
            return fmt::format("parallel.tensor = {} does not divide model.ffn = {} ({})", tensor,
                               model.ffn, try_divisors(common > 0 ? common : model.ffn, tensor));
          });
  require(!parallel.sequence || model.heads % tensor != 0 || model.sequence % tensor == 0,
          {"parallel.tensor", "parallel.sequence", "model.sequence", "model.heads"}, [&] {
            return fmt::format(
                "parallel.tensor = {} does not divide model.sequence = {}, which parallel.sequence "
                "cuts ({}, or parallel.sequence: false)",
                tensor, model.sequence,
                try_divisors(std::gcd(common > 0 ? common : model.heads, model.sequence), tensor));
          });
  // Only what begins or ends the pipeline reads tokens.
  require((stages <= 2 && parallel.interleave <= 1) || !deck_.data.reset_attention,
          {"data.reset_attention", "parallel.pipeline"}, [&] {
            return fmt::format(
                "data.reset_attention = true is built for at most two stages, not interleaved, but "
                "parallel.pipeline = {} and parallel.interleave = {} (try parallel.pipeline: 2)",
                stages, parallel.interleave);
          });
  if (!parallel.partition) {
    // What interleaves is cut finer: see pipeline().
    require(parallel.interleave > 1 || model.layers % stages == 0,
            {"parallel.pipeline", "model.layers", "parallel.partition"}, [&] {
              return fmt::format(
                  "parallel.pipeline = {} does not divide model.layers = {} ({}, or "
                  "parallel.partition: {})",
                  stages, model.layers, try_divisors(model.layers, stages),
                  even_partition(model.layers, stages));
            });
    return;
  }
  const std::string written = Codec<std::vector<std::int64_t>>::write(*parallel.partition);
  const auto parts = static_cast<std::int64_t>(parallel.partition->size());
  const std::int64_t sum =
      std::accumulate(parallel.partition->begin(), parallel.partition->end(), std::int64_t{0});
  require(parts == stages, {"parallel.partition", "parallel.pipeline", "model.layers"}, [&] {
    return fmt::format("parallel.partition = {} has {} parts, but parallel.pipeline = {} (try {})",
                       written, parts, stages, even_partition(model.layers, stages));
  });
  require(parts != stages || sum == model.layers, {"parallel.partition", "model.layers"}, [&] {
    return fmt::format("parallel.partition = {} has {} layers, but model.layers = {} (try {})",
                       written, sum, model.layers, even_partition(model.layers, stages));
  });
}

void Checker::pipeline() {
  const Parallel& parallel = deck_.parallel;
  const std::int64_t stages = std::max<std::int64_t>(parallel.pipeline, 1);
  const std::int64_t chunks = std::max<std::int64_t>(parallel.interleave, 1);
  const std::string_view name = name_of(parallel.schedule);
  const bool interleaved = parallel.schedule == PipelineSchedule::interleaved;
  require(stages > 1 || parallel.schedule == PipelineSchedule::one_f_one_b,
          {"parallel.schedule", "parallel.pipeline"}, [&] {
            return fmt::format(
                "parallel.schedule = {} needs parallel.pipeline of 2 or more, not {} (try "
                "parallel.schedule: 1f1b)",
                name, stages);
          });
  require(interleaved || chunks == 1, {"parallel.interleave", "parallel.schedule"}, [&] {
    return fmt::format(
        "parallel.interleave = {} has no effect while parallel.schedule = {} (try "
        "parallel.schedule: interleaved)",
        chunks, name);
  });
  if (!interleaved) return;
  require(chunks > 1, {"parallel.schedule", "parallel.interleave"}, [&] {
    return fmt::format(
        "parallel.schedule = interleaved needs chunks of layers to interleave (try "
        "parallel.interleave: 2)");
  });
  const std::int64_t links = stages * chunks;
  require(deck_.model.layers % links == 0,
          {"parallel.interleave", "parallel.pipeline", "model.layers"}, [&] {
            const std::int64_t layers = deck_.model.layers;
            const bool whole_stages = layers % stages == 0 && layers > stages;
            return fmt::format(
                "parallel.pipeline * parallel.interleave = {} * {} = {} does not divide "
                "model.layers = {} (try {})",
                stages, chunks, links, layers,
                whole_stages ? "parallel.interleave: " +
                                   divisor_list(layers / stages, chunks, /*factor=*/1, /*least=*/2)
                             : fmt::format("model.layers: {}", (layers / links + 1) * links));
          });
  require(!parallel.partition, {"parallel.partition", "parallel.schedule"}, [&] {
    return fmt::format(
        "parallel.partition = {} with parallel.schedule = interleaved, which cuts the layers into "
        "equal chunks; leave parallel.partition out",
        Codec<std::vector<std::int64_t>>::write(*parallel.partition));
  });
  require(parallel.overlap.pipeline, {"parallel.overlap.pipeline", "parallel.schedule"}, [] {
    return "parallel.overlap.pipeline = false with parallel.schedule = interleaved: stages in a "
           "ring would wait for each other (try parallel.overlap.pipeline: true)";
  });
}

void Checker::batch_and_length() {
  const Train& train = deck_.train;
  const Batch& batch = deck_.batch;
  const bool both = train.iterations && train.samples;
  require(!both, {"train.samples", "train.iterations"}, [&] {
    return fmt::format(
        "train.iterations = {} and train.samples = {} both say how long to train; give one",
        *train.iterations, *train.samples);
  });
  const std::int64_t first = batch.rampup.start.value_or(batch.global);
  require(!train.samples || *train.samples >= first,
          {"train.samples", "batch.global", "batch.rampup.start"}, [&] {
            return fmt::format("train.samples = {} is less than {} = {} (try {})", *train.samples,
                               batch.rampup.start ? "batch.rampup.start" : "batch.global", first,
                               first);
          });
  const auto problem = batch_problem(deck_, deck_.parallel.data.value_or(1));
  require(!problem,
          {problem ? problem->key : "", "batch.global", "batch.rampup.start", "batch.rampup.step",
           "batch.micro", "parallel.data", "parallel.schedule", "train.iterations"},
          [&] { return problem->text; });
}

void Checker::rampup() {
  const Rampup& ramp = deck_.batch.rampup;
  if (!ramp.start && !ramp.step && !ramp.samples) return;
  const auto needed = [&](bool given, std::string_view path) {
    require(given, {path, "batch.rampup"},
            [path] { return fmt::format("missing key '{}': {}", path, find_key(path)->help); });
  };
  needed(ramp.start.has_value(), "batch.rampup.start");
  needed(ramp.step.has_value(), "batch.rampup.step");
  needed(ramp.samples.has_value(), "batch.rampup.samples");
}

void Checker::skipped_data() {
  const auto& ranges = deck_.train.skip;
  const std::int64_t iterations = total_iterations(deck_);
  require(ranges.empty() || ranges.back().first <= iterations,
          {"train.skip", "train.iterations", "train.samples", "batch.global"}, [&] {
            return fmt::format("train.skip = {} begins after the last iteration, {}; leave it out",
                               write_range(ranges.back()), iterations);
          });
}

void Checker::schedule() {
  const Schedule& schedule = deck_.schedule;
  const WeightDecay& decay = schedule.weight_decay;
  require(decay.type != RampType::constant || decay.end == deck_.optimizer.weight_decay,
          {"schedule.weight_decay.end", "schedule.weight_decay.type", "optimizer.weight_decay"},
          [&] {
            return fmt::format(
                "schedule.weight_decay.end = {} is not optimizer.weight_decay = {}, but "
                "schedule.weight_decay.type = constant (try type: linear)",
                decay.end, deck_.optimizer.weight_decay);
          });
  if (schedule.type == ScheduleType::lr_range_test) return range_test();
  const RangeTest& test = schedule.range_test;
  const auto belongs_to_range_test = [&](bool left_out, std::string_view path) {
    require(left_out, {path, "schedule.type"}, [&, path] {
      return fmt::format("'{}' needs schedule.type = lr-range-test, but it is {}; leave it out",
                         path, name_of(schedule.type));
    });
  };
  belongs_to_range_test(!test.step, "schedule.range_test.step");
  belongs_to_range_test(!test.rate, "schedule.range_test.rate");
  belongs_to_range_test(!test.staircase, "schedule.range_test.staircase");
  require(schedule.peak.has_value(), {"schedule.peak", "schedule"}, [] {
    return fmt::format("missing key 'schedule.peak': {}", find_key("schedule.peak")->help);
  });
  const double peak = schedule.peak.value_or(schedule.minimum);
  require(schedule.minimum <= peak, {"schedule.minimum", "schedule.peak"}, [&] {
    return fmt::format("schedule.minimum = {} is above schedule.peak = {} (try 0)",
                       schedule.minimum, peak);
  });
  // In what the dialect counts: lengths that differ in samples may be one number of iterations.
  const auto length = [&](const Length& value) {
    return schedule.dialect == ScheduleDialect::v1 ? in_iterations(value, deck_)
                                                   : in_samples(value, deck_);
  };
  require(
      length(schedule.warmup) < length(schedule.decay),
      {"schedule.warmup", "schedule.decay", "train.iterations", "train.samples", "batch.global"},
      [&] {
        return fmt::format(
            "schedule.warmup = {} is not shorter than schedule.decay = {} (try 0.01, a "
            "fraction of decay)",
            write_length(schedule.warmup), write_length(schedule.decay));
      });
}

// A range test has a start and a slope, and none of the other schedules' lengths.
void Checker::range_test() {
  const Schedule& schedule = deck_.schedule;
  require(schedule.minimum > 0, {"schedule.minimum", "schedule.type"}, [] {
    return "schedule.type = lr-range-test starts from schedule.minimum, which is 0 (try 1e-5)";
  });
  const auto unused = [&](bool left_out, std::string_view path) {
    require(left_out, {path, "schedule.type"}, [path] {
      return fmt::format("schedule.type = lr-range-test has no use for '{}'; leave it out", path);
    });
  };
  unused(!schedule.peak, "schedule.peak");
  unused(schedule.warmup.value == 0, "schedule.warmup");
  Deck without = deck_;
  find_key("schedule.decay")->derive(without);
  unused(schedule.decay == without.schedule.decay, "schedule.decay");
}

void Checker::tokenizer() {
  const Tokenizer& tokenizer = deck_.data.tokenizer;
  const auto is = [&](TokenizerType type) { return tokenizer.type == type; };
  struct File {
    std::string_view path;
    bool given;
    bool used;
  };
  const bool gpt2 = is(TokenizerType::gpt2);
  const File files[] = {
      {"data.tokenizer.vocab", tokenizer.vocab.has_value(), gpt2 || is(TokenizerType::whitespace)},
      {"data.tokenizer.merges", tokenizer.merges.has_value(), gpt2},
      {"data.tokenizer.model", tokenizer.model.has_value(), is(TokenizerType::sentencepiece)},
  };
  for (const auto& [path, given, used] : files) {
    require(given || !used, {"data.tokenizer.type", path}, [&, path = path] {
      return fmt::format("data.tokenizer.type = {} needs '{}'", name_of(*tokenizer.type), path);
    });
    require(!given || used, {path, "data.tokenizer.type"}, [&, path = path] {
      return tokenizer.type ? fmt::format("data.tokenizer.type = {} has no use for '{}'",
                                          name_of(*tokenizer.type), path)
                            : fmt::format("'{}' needs data.tokenizer.type", path);
    });
  }
  require(deck_.model.vocab || tokenizer.type,
          {"model.vocab", "data.tokenizer.type", "data.tokenizer", "data"}, [] {
            return "missing key 'data.tokenizer.type': give it, or the size of the vocabulary in "
                   "'model.vocab'";
          });
}

void Checker::data(const LoadOptions& options) {
  require(deck_.data.train || !options.need_data, {"data.train", "data"},
          [] { return fmt::format("missing key 'data.train': {}", find_key("data.train")->help); });
  const std::vector<double>& split = deck_.data.split;
  const double sum = std::accumulate(split.begin(), split.end(), 0.0);
  const std::string written = Codec<std::vector<double>>::write(split);
  require(split.size() <= 3 && sum > 0 && std::isfinite(sum), {"data.split"}, [&] {
    return fmt::format(
        "data.split = {}: give at most three weights, for train, valid and test, that do not sum "
        "to 0 (try 969,30,1)",
        written);
  });
  const bool valid = deck_.data.valid || (split.size() > 1 && split[1] > 0);
  require(valid || !deck_.evaluate.every, {"evaluate.every", "data.split"}, [&] {
    return fmt::format(
        "evaluate.every = {} has nothing to evaluate: data.split = {} has no validation part (try "
        "969,30,1, or give data.valid)",
        write_length(*deck_.evaluate.every), written);
  });
  require(valid || !deck_.evaluate.at_end, {"evaluate.at_end", "data.split"}, [&] {
    return fmt::format(
        "evaluate.at_end = true has nothing to evaluate: data.split = {} has no validation part "
        "(try 969,30,1, or give data.valid)",
        written);
  });
  struct Part {
    std::string_view path;
    const std::optional<Datasets>& datasets;
  };
  for (const auto& [path, datasets] : {Part{"data.train", deck_.data.train},
                                       {"data.valid", deck_.data.valid},
                                       {"data.test", deck_.data.test}}) {
    const bool mixed = datasets && (datasets->names.size() > 1 || !datasets->weights.empty());
    require(!mixed || !deck_.data.index_files, {"data.index_files", path}, [&, path = path] {
      return fmt::format(
          "data.index_files gives the indices of one dataset, but {} mixes {}; leave "
          "data.index_files out",
          path, datasets->names.size());
    });
  }
}

void Checker::checkpoints() {
  const Checkpoint& checkpoint = deck_.checkpoint;
  require(
      !checkpoint.keep_every || checkpoint.keep, {"checkpoint.keep_every", "checkpoint.keep"}, [&] {
        return fmt::format(
            "checkpoint.keep_every = {} has no effect while checkpoint.keep = all (try keep: 2)",
            write_length(*checkpoint.keep_every));
      });
}

void Checker::device() {
  const bool on_host = deck_.run.device == Device::host;
  const Precision& precision = deck_.precision;
  require(precision.compute == Compute::fp32 || precision.gradients == GradientPrecision::fp32,
          {"precision.gradients", "precision.compute"}, [&] {
            return fmt::format(
                "precision.gradients = same with precision.compute = {} is not built yet (try "
                "precision.gradients: fp32)",
                name_of(precision.compute));
          });
  require(on_host || !deck_.data.reset_attention, {"data.reset_attention", "run.device"}, [] {
    return "data.reset_attention = true needs run.device = host: attention on GPUs does not stop "
           "at "
           "documents' ends yet (try data.reset_attention: false)";
  });
  require(!on_host || !deck_.comm.nccl_debug, {"comm.nccl_debug", "run.device"}, [&] {
    return fmt::format("comm.nccl_debug = {} needs run.device = cuda; leave it out",
                       *deck_.comm.nccl_debug);
  });
}

void Checker::optimizer() {
  const Optimizer& optimizer = deck_.optimizer;
  const auto refuse = [&](bool left_out, std::string_view path) {
    require(left_out, {path, "optimizer.type"}, [&, path] {
      return fmt::format("optimizer.type = {} has no use for '{}'; leave it out",
                         name_of(optimizer.type), path);
    });
  };
  if (optimizer.type != OptimizerType::sgd) {
    refuse(!optimizer.momentum, "optimizer.momentum");
    return;
  }
  const Optimizer& usual = fixed_defaults().optimizer;
  refuse(optimizer.beta1 == usual.beta1, "optimizer.beta1");
  refuse(optimizer.beta2 == usual.beta2, "optimizer.beta2");
  refuse(optimizer.eps == usual.eps, "optimizer.eps");
}

void Checker::loss_scale() {
  const Precision& precision = deck_.precision;
  const LossScale& scale = precision.loss_scale;
  const auto belongs_to_dynamic = [&](bool left_out, std::string_view path) {
    require(left_out || is_dynamic(precision),
            {path, "precision.loss_scale.value", "precision.compute"}, [&, path] {
              return scale.value
                         ? fmt::format(
                               "'{}' has no use beside precision.loss_scale.value = {}; leave one "
                               "of them out",
                               path, *scale.value)
                         : fmt::format(
                               "'{}' needs precision.compute = fp16, but it is {}; leave "
                               "it out",
                               path, name_of(precision.compute));
            });
  };
  belongs_to_dynamic(!scale.dialect, "precision.loss_scale.dialect");
  belongs_to_dynamic(!scale.initial, "precision.loss_scale.initial");
  belongs_to_dynamic(!scale.window, "precision.loss_scale.window");
  belongs_to_dynamic(!scale.hysteresis, "precision.loss_scale.hysteresis");
  belongs_to_dynamic(!scale.minimum, "precision.loss_scale.minimum");
  if (!is_dynamic(precision)) return;
  const double initial = scale.initial.value(), minimum = scale.minimum.value();
  require(initial >= minimum, {"precision.loss_scale.minimum", "precision.loss_scale.initial"},
          [&] {
            return fmt::format(
                "precision.loss_scale.minimum = {} is above precision.loss_scale.initial = {} (try "
                "{})",
                minimum, initial, std::min(1.0, initial));
          });
}

void Checker::recompute() {
  const Recompute& recompute = deck_.recompute;
  const std::string_view granularity = name_of(recompute.granularity);
  const auto belongs_to_full = [&](bool left_out, std::string_view path) {
    require(left_out || recompute.granularity == Granularity::full, {path, "recompute.granularity"},
            [&, path] {
              return fmt::format(
                  "'{}' needs recompute.granularity = full, but it is {}; leave it out", path,
                  granularity);
            });
  };
  belongs_to_full(!recompute.method, "recompute.method");
  belongs_to_full(!recompute.layers, "recompute.layers");
  // Zero-bubble keeps gradients where activations were: here those are not a micro-batch's own.
  require(recompute.granularity == Granularity::none ||
              deck_.parallel.schedule != PipelineSchedule::zero_bubble,
          {"recompute.granularity", "parallel.schedule"}, [&] {
            return fmt::format(
                "recompute.granularity = {} with parallel.schedule = zero-bubble, whose weight "
                "gradients need the activations longer (try parallel.schedule: 1f1b, or "
                "recompute.granularity: none)",
                granularity);
          });
}

}  // namespace

void check_together(const Deck& deck, const Given& given, const LoadOptions& options,
                    Problems& problems) {
  Checker checker(deck, given, problems);
  checker.model();
  checker.layout();
  checker.pipeline();
  checker.batch_and_length();
  checker.rampup();
  checker.skipped_data();
  checker.schedule();
  checker.tokenizer();
  checker.data(options);
  checker.checkpoints();
  checker.device();
  checker.optimizer();
  checker.loss_scale();
  checker.recompute();
}

}  // namespace trireme::deck
