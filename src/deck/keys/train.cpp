// The keys of the length of a run, of evaluation and of checkpoints.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

void train_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(train.iterations))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Length of the run; give this or train.samples."),
          key(TRIREME_MEMBER(train.samples))
              .from(1, kMostSteps)
              .unit("samples")
              .noted()
              .help("Length of the run; an incomplete last batch is dropped."),
          key(TRIREME_MEMBER(train.exit_interval))
              .from(1, kMostSteps)
              .units(counts())
              .help("Stop, with a checkpoint, at each multiple of this."),
          key(TRIREME_MEMBER(train.exit_duration))
              .above(0)
              .units(times())
              .help("Stop, with a checkpoint, after this time."),
          key(TRIREME_MEMBER(train.kill_switch))
              .help("Stop, with a checkpoint, when this file appears."),
          key(TRIREME_MEMBER(train.skip))
              .from(1, kMostSteps)
              .unit("iterations")
              .noted()
              .help("Iterations whose data is skipped: they use the data that follows."),
          key(TRIREME_MEMBER(train.diverged_after))
              .by_default("20")
              .from(1, kMostSteps)
              .unit("iterations")
              .help("Stop with exit code 76 after so many iterations in a row without a finite "
                    "loss and gradient; those that only lower the loss scale do not count."),
          key(TRIREME_MEMBER(evaluate.every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Evaluate on the validation split at each multiple of this."),
          key(TRIREME_MEMBER(evaluate.iterations))
              .by_default("10")
              .from(1, 1e6)
              .unit("iterations")
              .help("Batches of one evaluation."),
          key(TRIREME_MEMBER(evaluate.at_end))
              .derived("true where there is a validation or test part",
                       [](Deck& deck) {
                         deck.evaluate.at_end = has_valid_part(deck) || has_test_part(deck);
                       })
              .help("Evaluate on the validation and test splits when the run has finished."),
          key(TRIREME_MEMBER(checkpoint.every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Write a checkpoint at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.at_end))
              .by_default("true")
              .help("Write a checkpoint when the run has finished."),
          key(TRIREME_MEMBER(checkpoint.keep))
              .unset_word("all")
              .at_least(1)
              .unit("checkpoints")
              .help("Number of newest checkpoints to keep."),
          key(TRIREME_MEMBER(checkpoint.keep_every))
              .from(1, kMostSteps)
              .units(counts())
              .help("Also keep the checkpoints at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.async))
              .by_default("false")
              .built({"false"})
              .help("Write while training continues."),
          key(TRIREME_MEMBER(checkpoint.load)).help("Checkpoint that a fresh run starts from."),
      });
}

}  // namespace trireme::deck
