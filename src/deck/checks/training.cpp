// The learning-rate schedule, muP, spikes, the optimizer, FP8, the loss scale and recomputation.
#include "deck/checks/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/text.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {

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
  if (schedule.type != ScheduleType::wsd)
    for (const std::string_view path : {"schedule.wsd.decay", "schedule.wsd.shape"})
      require(
          !given_.places.contains(path), {path, "schedule.type"},
          [&] {
            return fmt::format("'{}' needs schedule.type = wsd, but it is {}; leave it out", path,
                               name_of(schedule.type));
          },
          Suggestion::leave_out_first);
  if (schedule.type == ScheduleType::lr_range_test) return range_test();
  const RangeTest& test = schedule.range_test;
  const auto belongs_to_range_test = [&](bool left_out, std::string_view path) {
    require(
        left_out, {path, "schedule.type"},
        [&, path] {
          return fmt::format("'{}' needs schedule.type = lr-range-test, but it is {}; leave it out",
                             path, name_of(schedule.type));
        },
        Suggestion::leave_out_first);
  };
  belongs_to_range_test(!test.step, "schedule.range_test.step");
  belongs_to_range_test(!test.rate, "schedule.range_test.rate");
  belongs_to_range_test(!test.staircase, "schedule.range_test.staircase");
  require(
      schedule.peak.has_value(), {"schedule.peak", "schedule"},
      [] {
        return fmt::format("missing key 'schedule.peak': {}", find_key("schedule.peak")->help);
      },
      Suggestion::give_key);
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
  if (schedule.type != ScheduleType::wsd || !schedule.wsd.decay) return;
  // Fractions of the decay are not rounded to whole numbers, but their sum to a double.
  const auto whole = static_cast<double>(length(schedule.decay));
  const auto part = [&](const Length& value) {
    return value.unit == Unit::fraction ? value.value * whole : static_cast<double>(length(value));
  };
  require(
      length(*schedule.wsd.decay) >= 1 &&
          part(schedule.warmup) + part(*schedule.wsd.decay) <= whole * (1 + 1e-12),
      {"schedule.wsd.decay", "schedule.warmup", "schedule.decay", "train.iterations",
       "train.samples", "batch.global"},
      [&] {
        return fmt::format(
            "schedule.wsd.decay = {} does not fit between schedule.warmup = {} and schedule.decay "
            "= {} (try 0.1, a fraction of schedule.decay)",
            write_length(*schedule.wsd.decay), write_length(schedule.warmup),
            write_length(schedule.decay));
      });
}

// A range test has a start and a slope, and none of the other schedules' lengths.
void Checker::range_test() {
  const Schedule& schedule = deck_.schedule;
  require(schedule.minimum > 0, {"schedule.minimum", "schedule.type"}, [] {
    return "schedule.type = lr-range-test starts from schedule.minimum, which is 0 (try 1e-5)";
  });
  const auto unused = [&](bool left_out, std::string_view path) {
    require(
        left_out, {path, "schedule.type"},
        [path] {
          return fmt::format("schedule.type = lr-range-test has no use for '{}'; leave it out",
                             path);
        },
        Suggestion::leave_out_first);
  };
  unused(!schedule.peak, "schedule.peak");
  unused(schedule.warmup.value == 0, "schedule.warmup");
  Deck without = deck_;
  find_key("schedule.decay")->derive(without);
  unused(schedule.decay == without.schedule.decay, "schedule.decay");
}

void Checker::mup() {
  const Mup& mup = deck_.model.mup;
  for (const std::string_view path : {"model.mup.base_head", "model.mup.embedding"})
    require(
        mup.base || !given_.places.contains(path), {path, "model.mup.base"},
        [path] { return fmt::format("'{}' needs 'model.mup.base'; leave it out", path); },
        Suggestion::leave_out_first);
  const OptimizerType type = deck_.optimizer.type;
  require(!mup.base || type == OptimizerType::adamw || type == OptimizerType::adam ||
              type == OptimizerType::muon,
          {"model.mup.base", "optimizer.type"}, [&] {
            return fmt::format(
                "model.mup.base has rules for Adam and Muon, not for optimizer.type = {} (try "
                "adamw)",
                name_of(type));
          });
}

void Checker::spike() {
  const Spike& spike = deck_.train.spike;
  for (const std::string_view path :
       {"train.spike.window", "train.spike.limit", "train.spike.back", "train.spike.skip"})
    require(
        spike.above || !given_.places.contains(path), {path, "train.spike.above"},
        [path] { return fmt::format("'{}' needs 'train.spike.above'; leave it out", path); },
        Suggestion::leave_out_first);
  require(
      !spike.above || spike.back || !spike.skip, {"train.spike.skip", "train.spike.back"},
      [] { return "'train.spike.skip' needs 'train.spike.back'; leave it out"; },
      Suggestion::leave_out_first);
  const Checkpoint& saved = deck_.checkpoint;
  require(
      !spike.above || !spike.back || saved.every, {"train.spike.back", "checkpoint.every"},
      [] { return "'train.spike.back' needs 'checkpoint.every': there is nothing to go back to"; },
      Suggestion::give_key);
  require(!spike.above || !spike.back || !saved.keep || *spike.back <= *saved.keep,
          {"train.spike.back", "checkpoint.keep"}, [&] {
            return fmt::format(
                "train.spike.back = {} needs more checkpoints than checkpoint.keep = {} (try "
                "checkpoint.keep: {})",
                *spike.back, *saved.keep, *spike.back);
          });
  require(!spike.skip || *spike.skip <= total_iterations(deck_),
          {"train.spike.skip", "train.iterations", "train.samples", "batch.global"}, [&] {
            return fmt::format(
                "train.spike.skip = {} skips more data than the run's {} take; leave it out, or "
                "skip less",
                *spike.skip, counted(total_iterations(deck_), "iteration"));
          });
}

void Checker::optimizer() {
  const Optimizer& optimizer = deck_.optimizer;
  const Precision& precision = deck_.precision;
  require(optimizer.type != OptimizerType::lamb || precision.compute == Compute::fp32 ||
              precision.gradients == GradientPrecision::fp32,
          {"precision.gradients", "precision.compute", "optimizer.type"}, [&] {
            return fmt::format(
                "precision.gradients = same with precision.compute = {} leaves optimizer.type = "
                "lamb no fp32 room for its directions (try precision.gradients: fp32)",
                name_of(precision.compute));
          });
  require(optimizer.type != OptimizerType::muon || precision.compute != Compute::fp16 ||
              precision.gradients == GradientPrecision::fp32,
          {"precision.gradients", "precision.compute", "optimizer.type"}, [] {
            return "precision.gradients = same with precision.compute = fp16 cannot hold the "
                   "updates of optimizer.type = muon, which are bf16 (try precision.gradients: "
                   "fp32)";
          });
  require(
      !precision.looks_up_master_weights() || deck_.parallel.zero == 0,
      {"precision.embedding", "precision.compute", "parallel.zero"}, [&] {
        return fmt::format(
            "precision.embedding = fp32 with precision.compute = {} reads master weights, which "
            "parallel.zero = {} shards over the data ranks (try parallel.zero: 0)",
            name_of(precision.compute), deck_.parallel.zero);
      });
  const auto refuse = [&](bool left_out, std::string_view path) {
    require(
        left_out, {path, "optimizer.type"},
        [&, path] {
          return fmt::format("optimizer.type = {} has no use for '{}'; leave it out",
                             name_of(optimizer.type), path);
        },
        Suggestion::leave_out_first);
  };
  if (optimizer.type != OptimizerType::muon) {
    refuse(!optimizer.muon.scale, "optimizer.muon.scale");
    refuse(!optimizer.muon.nesterov, "optimizer.muon.nesterov");
  }
  if (optimizer.type == OptimizerType::lamb) {
    refuse(optimizer.rate == fixed_defaults().optimizer.rate, "optimizer.rate");
    refuse(optimizer.decay == fixed_defaults().optimizer.decay, "optimizer.decay");
  }
  // BERT's heads have matrices besides the embedding.
  if (deck_.model.tie_embeddings && deck_.model.family != Family::bert) {
    const Optimizer& usual = fixed_defaults().optimizer;
    const auto refuse_head = [&](bool left_out, std::string_view path) {
      require(
          left_out, {path, "model.tie_embeddings"},
          [path] {
            return fmt::format(
                "'{}' has no effect with model.tie_embeddings = true, where the output projection "
                "is the embedding; leave it out",
                path);
          },
          Suggestion::leave_out_first);
    };
    refuse_head(optimizer.rate.head == usual.rate.head, "optimizer.rate.head");
    refuse_head(optimizer.decay.head == usual.decay.head, "optimizer.decay.head");
  }
  if (optimizer.type != OptimizerType::sgd) {
    refuse(!optimizer.momentum || optimizer.type == OptimizerType::muon, "optimizer.momentum");
    return;
  }
  const Optimizer& usual = fixed_defaults().optimizer;
  refuse(optimizer.beta1 == usual.beta1, "optimizer.beta1");
  refuse(optimizer.beta2 == usual.beta2, "optimizer.beta2");
  refuse(optimizer.eps == usual.eps, "optimizer.eps");
}

void Checker::fp8() {
  const Precision& precision = deck_.precision;
  const Fp8& fp8 = precision.fp8;
  const auto belongs_to_fp8 = [&](bool left_out, std::string_view path) {
    require(
        left_out || precision.gemm == GemmPrecision::fp8, {path, "precision.gemm"},
        [path] {
          return fmt::format("'{}' needs precision.gemm = fp8, but it is same; leave it out", path);
        },
        Suggestion::leave_out_first);
  };
  belongs_to_fp8(!fp8.recipe, "precision.fp8.recipe");
  belongs_to_fp8(!fp8.forward, "precision.fp8.forward");
  belongs_to_fp8(!fp8.backward, "precision.fp8.backward");
  belongs_to_fp8(!fp8.first_layers, "precision.fp8.first_layers");
  belongs_to_fp8(!fp8.last_layers, "precision.fp8.last_layers");
  if (precision.gemm != GemmPrecision::fp8) return;
  require(precision.compute != Compute::fp32 || deck_.run.device != Device::cuda,
          {"precision.gemm", "precision.compute"}, [] {
            return "precision.gemm = fp8 with precision.compute = fp32: GPUs add FP8 GEMMs to 16 "
                   "bits (try precision.compute: bf16)";
          });
  require(fp8.forward != Fp8Type::e5m2, {"precision.fp8.forward"}, [] {
    return "precision.fp8.forward = e5m2 is not built yet: two bits of mantissa are too few for "
           "activations and weights (try e4m3)";
  });
  const std::int64_t kept = fp8.first_layers.value_or(0) + fp8.last_layers.value_or(0);
  require(kept < deck_.model.layers,
          {"precision.fp8.first_layers", "precision.fp8.last_layers", "model.layers"}, [&] {
            return fmt::format(
                "precision.fp8.first_layers + last_layers = {} leave none of model.layers = {} for "
                "FP8 (try fewer, or precision.gemm: same)",
                kept, deck_.model.layers);
          });
}

void Checker::loss_scale() {
  const Precision& precision = deck_.precision;
  const LossScale& scale = precision.loss_scale;
  const auto fits_fp32 = [](double value) {
    return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
  };
  require(!scale.value || fits_fp32(*scale.value), {"precision.loss_scale.value"}, [&] {
    return fmt::format("precision.loss_scale.value = {} is beyond fp32 (1.2e-38 to 3.4e38)",
                       *scale.value);
  });
  const auto belongs_to_dynamic = [&](bool left_out, std::string_view path) {
    require(
        left_out || is_dynamic(precision),
        {path, "precision.loss_scale.value", "precision.compute"},
        [&, path] {
          return scale.value
                     ? fmt::format(
                           "'{}' has no effect with precision.loss_scale.value = {}; leave one "
                           "of them out",
                           path, *scale.value)
                     : fmt::format(
                           "'{}' needs precision.compute = fp16, but it is {}; leave "
                           "it out",
                           path, name_of(precision.compute));
        },
        Suggestion::leave_out_first);
  };
  belongs_to_dynamic(!scale.dialect, "precision.loss_scale.dialect");
  belongs_to_dynamic(!scale.initial, "precision.loss_scale.initial");
  belongs_to_dynamic(!scale.window, "precision.loss_scale.window");
  belongs_to_dynamic(!scale.hysteresis, "precision.loss_scale.hysteresis");
  belongs_to_dynamic(!scale.minimum, "precision.loss_scale.minimum");
  // What has a bad value has none here.
  if (!is_dynamic(precision) || !scale.initial || !scale.minimum) return;
  const double initial = *scale.initial, minimum = *scale.minimum;
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
    require(
        left_out || recompute.granularity == Granularity::full, {path, "recompute.granularity"},
        [&, path] {
          return fmt::format("'{}' needs recompute.granularity = full, but it is {}; leave it out",
                             path, granularity);
        },
        Suggestion::leave_out_first);
  };
  belongs_to_full(!recompute.method, "recompute.method");
  belongs_to_full(!recompute.layers, "recompute.layers");
  belongs_to_full(!recompute.partition, "recompute.partition");
  belongs_to_full(!recompute.offload, "recompute.offload");
  belongs_to_full(!recompute.contiguous, "recompute.contiguous");
  if (recompute.partition && recompute.granularity == Granularity::full) {
    require(
        deck_.parallel.tensor > 1, {"recompute.partition", "parallel.tensor"},
        [] {
          return "recompute.partition = true with parallel.tensor = 1: there is no rank to share "
                 "with; "
                 "leave it out (recompute.offload: true saves more)";
        },
        Suggestion::leave_out_first);
    require(
        !deck_.parallel.sequence, {"recompute.partition", "parallel.sequence"},
        [] {
          return "recompute.partition = true has no effect with parallel.sequence = true, with "
                 "which "
                 "each tensor rank has a share of all inputs already; leave it out";
        },
        Suggestion::leave_out_first);
  }
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

}  // namespace trireme::deck
