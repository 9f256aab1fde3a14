// The keys of the optimizer and of its schedule.
#include "deck/keys/row.hpp"

namespace trireme::deck {
namespace {

bool is_muon(const Deck& deck) { return deck.optimizer.type == OptimizerType::muon; }

void derive_momentum(Deck& deck) {
  deck.optimizer.momentum.reset();
  if (deck.optimizer.type == OptimizerType::sgd) deck.optimizer.momentum = 0;
  if (is_muon(deck)) deck.optimizer.momentum = 0.95;
}

void derive_muon_scale(Deck& deck) {
  deck.optimizer.muon.scale.reset();
  if (is_muon(deck)) deck.optimizer.muon.scale = MuonScale::match_rms;
}

void derive_nesterov(Deck& deck) {
  deck.optimizer.muon.nesterov.reset();
  if (is_muon(deck)) deck.optimizer.muon.nesterov = true;
}

}  // namespace

void optimizer_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(optimizer.type)).by_default("adamw").immutable().help("Update rule."),
          key(TRIREME_MEMBER(optimizer.beta1))
              .by_default("0.9")
              .at_least(0)
              .below(1)
              .warn()
              .help("Decay of the gradients' average; not with sgd."),
          key(TRIREME_MEMBER(optimizer.beta2))
              .by_default("0.999")
              .at_least(0)
              .below(1)
              .warn()
              .help("Decay of the squared gradients' average; not with sgd."),
          key(TRIREME_MEMBER(optimizer.eps))
              .by_default("1e-08")
              .at_least(1.2e-38)  // fp32's smallest normal number
              .warn()
              .help("Added to the root of the second moment."),
          key(TRIREME_MEMBER(optimizer.momentum))
              .derived("0 with sgd, 0.95 with muon", derive_momentum)
              .at_least(0)
              .below(1)
              .immutable()
              .help("Momentum of sgd, or of muon's matrices; 0: none."),
          key(TRIREME_MEMBER(optimizer.muon.scale))
              .derived("match-rms with muon", derive_muon_scale)
              .immutable()
              .help(
                  "muon: factor of the update of a matrix of m rows and n columns. match-rms: 0.2 "
                  "sqrt(max(m, n)), as large as AdamW's updates; spectral: sqrt(max(1, m / n))."),
          key(TRIREME_MEMBER(optimizer.muon.nesterov))
              .derived("true with muon", derive_nesterov)
              .warn()
              .help("muon: Nesterov momentum."),
          key(TRIREME_MEMBER(optimizer.weight_decay))
              .by_default("0.01")
              .at_least(0)
              .warn()
              .help("Weight decay, in the gradient with adam and sgd; biases and norms have none."),
          key(TRIREME_MEMBER(optimizer.rate.embedding))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the learning rate of embeddings."),
          key(TRIREME_MEMBER(optimizer.rate.matrices))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the learning rate of the layers' matrices."),
          key(TRIREME_MEMBER(optimizer.rate.head))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the learning rate of the output projection, unless it is tied, and "
                    "of BERT's heads."),
          key(TRIREME_MEMBER(optimizer.rate.vectors))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the learning rate of biases and norms."),
          key(TRIREME_MEMBER(optimizer.decay.embedding))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the weight decay of embeddings."),
          key(TRIREME_MEMBER(optimizer.decay.matrices))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the weight decay of the layers' matrices."),
          key(TRIREME_MEMBER(optimizer.decay.head))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Factor of the weight decay of the output projection, unless it is tied, and "
                    "of BERT's heads."),
          key(TRIREME_MEMBER(optimizer.decay.vectors))
              .by_default("0")
              .at_least(0)
              .warn()
              .help("Factor of the weight decay of biases and norms."),
          key(TRIREME_MEMBER(optimizer.clip))
              .by_default("1")
              .at_least(0)
              .warn()
              .help("Maximum global norm of the gradient; 0: no clipping."),
          key(TRIREME_MEMBER(schedule.type))
              .by_default("cosine")
              .warn()
              .help("Learning-rate schedule after the warm-up."),
          key(TRIREME_MEMBER(schedule.dialect))
              .by_default("megatron")
              .warn()
              .help("megatron counts samples; v1 counts iterations, by Megatron-LM 1.1.5's "
                    "formulas."),
          key(TRIREME_MEMBER(schedule.peak))
              .derived("needed, but for lr-range-test", {})
              .above(0)
              .warn()
              .help("Largest learning rate."),
          key(TRIREME_MEMBER(schedule.minimum))
              .by_default("0")
              .at_least(0)
              .warn()
              .help("Minimum learning rate after the warm-up, not with constant; lr-range-test "
                    "starts here."),
          key(TRIREME_MEMBER(schedule.warmup))
              .by_default("0 iterations")
              .from(0, kMaxSteps)
              .units({Unit::iterations, Unit::samples, Unit::fraction})
              .warn()
              .help("Linear rise from 0 to the peak; a number below 1 or a percentage is a "
                    "fraction of decay."),
          key(TRIREME_MEMBER(schedule.decay))
              .derived("the run's length",
                       [](Deck& deck) {
                         const Train& train = deck.train;
                         const Unit unit = train.samples ? Unit::samples : Unit::iterations;
                         const std::int64_t length =
                             train.samples ? *train.samples : train.iterations.value_or(0);
                         deck.schedule.decay = {static_cast<double>(length), unit};
                       })
              .from(1, kMaxSteps)
              .units(counts())
              .warn()
              .help("Length from the start until the minimum is reached; may be shorter than the "
                    "run."),
          key(TRIREME_MEMBER(schedule.weight_decay.end))
              .derived(
                  "optimizer.weight_decay",
                  [](Deck& deck) { deck.schedule.weight_decay.end = deck.optimizer.weight_decay; })
              .at_least(0)
              .warn()
              .help(
                  "Weight decay at the end of the run, which starts with optimizer.weight_decay."),
          key(TRIREME_MEMBER(schedule.weight_decay.type))
              .by_default("constant")
              .warn()
              .help("Schedule of the weight decay between the two."),
          key(TRIREME_MEMBER(schedule.wsd.decay))
              .derived("0.1 with wsd",
                       [](Deck& deck) {
                         deck.schedule.wsd.decay.reset();
                         if (deck.schedule.type == ScheduleType::wsd)
                           deck.schedule.wsd.decay = {0.1, Unit::fraction};
                       })
              .from(0, kMaxSteps)
              .units({Unit::iterations, Unit::samples, Unit::fraction})
              .warn()
              .help("wsd: length of the fall from the peak to the minimum, which ends at "
                    "schedule.decay; a number below 1 or a percentage is a fraction of that."),
          key(TRIREME_MEMBER(schedule.wsd.shape))
              .derived("linear with wsd",
                       [](Deck& deck) {
                         deck.schedule.wsd.shape.reset();
                         if (deck.schedule.type == ScheduleType::wsd)
                           deck.schedule.wsd.shape = WsdShape::linear;
                       })
              .warn()
              .help("wsd: shape of that fall; minus-sqrt: 1 - sqrt of its progress."),
          key(TRIREME_MEMBER(schedule.range_test.step))
              .derived("2000 iterations with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.step = {2000, Unit::iterations};
                       })
              .from(1, kMaxSteps)
              .units(counts())
              .warn()
              .help("Step of lr-range-test, over which the learning rate grows once."),
          key(TRIREME_MEMBER(schedule.range_test.rate))
              .derived("1 with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.rate = 1;
                       })
              .at_least(0)
              .warn()
              .help("Growth per step of lr-range-test, in units of schedule.minimum."),
          key(TRIREME_MEMBER(schedule.range_test.staircase))
              .derived("false with lr-range-test",
                       [](Deck& deck) {
                         if (deck.schedule.type == ScheduleType::lr_range_test)
                           deck.schedule.range_test.staircase = false;
                       })
              .warn()
              .help("lr-range-test: grow at the end of each step only."),
      });
}

}  // namespace trireme::deck
