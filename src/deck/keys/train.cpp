// The keys of the data and the length of a run, of evaluation, checkpoints, communication and logs;
// and of a sweep, which trireme-sweep reads and no run holds.
#include "deck/keys/row.hpp"

namespace trireme::deck {

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

namespace {

void derive_spike_window(Deck& deck) {
  deck.train.spike.window.reset();
  if (deck.train.spike.above) deck.train.spike.window = 128;
}

void derive_spike_limit(Deck& deck) {
  deck.train.spike.limit.reset();
  if (deck.train.spike.above) deck.train.spike.limit = 10;
}

}  // namespace

void train_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(train.iterations))
              .from(1, kMaxSteps)
              .unit("iterations")
              .warn()
              .help("Length of the run; give this or train.samples."),
          key(TRIREME_MEMBER(train.samples))
              .from(1, kMaxSteps)
              .unit("samples")
              .warn()
              .help("Length of the run; an incomplete last batch is dropped."),
          key(TRIREME_MEMBER(train.exit_interval))
              .from(1, kMaxSteps)
              .units(counts())
              .help("Stop, with a checkpoint, at each multiple of this."),
          key(TRIREME_MEMBER(train.exit_duration))
              .above(0)
              .units(times())
              .help("Stop, with a checkpoint, after this time."),
          key(TRIREME_MEMBER(train.kill_switch))
              .help("Stop, with a checkpoint, when this file appears."),
          key(TRIREME_MEMBER(train.skip))
              .from(1, kMaxSteps)
              .unit("iterations")
              .warn()
              .help("Iterations whose data is skipped: they use the data that follows."),
          key(TRIREME_MEMBER(train.diverged_after))
              .by_default("20")
              .from(1, kMaxSteps)
              .unit("iterations")
              .help("Stop with exit code 76 after so many iterations in a row without a finite "
                    "loss and gradient; those that only lower the loss scale do not count."),
          key(TRIREME_MEMBER(train.verify.step_every))
              .from(1, kMaxSteps)
              .unit("iterations")
              .help(
                  "Run forward and backward twice at each multiple of this, and compare all bits: "
                  "finds silent data corruption. Also tells where gradients that are not finite, "
                  "and spikes, come from."),
          key(TRIREME_MEMBER(train.verify.weights_every))
              .from(1, kMaxSteps)
              .unit("iterations")
              .help("Compare the replicas of the weights at each multiple of this."),
          key(TRIREME_MEMBER(train.verify.inject))
              .help("For tests alone: flip a bit, such as 'gradients rank=1 iteration=5 bit=30'."),
          key(TRIREME_MEMBER(train.spike.above))
              .above(0)
              .warn()
              .unit("standard deviations")
              .help("Skip updates of iterations whose loss or gradient norm is so far above the "
                    "mean of train.spike.window."),
          key(TRIREME_MEMBER(train.spike.window))
              .derived("128 iterations with train.spike.above", derive_spike_window)
              .from(2, 1000)
              .unit("iterations")
              .warn()
              .help(
                  "Iterations without a spike that the next one is compared with; none is skipped "
                  "before there are so many."),
          key(TRIREME_MEMBER(train.spike.limit))
              .derived("10 with train.spike.above", derive_spike_limit)
              .from(1, kMaxSteps)
              .warn()
              .help("Spikes that a run handles; later updates are applied."),
          key(TRIREME_MEMBER(train.spike.back))
              .from(1, 1000)
              .unit("checkpoints")
              .warn()
              .help("At a spike resume from so many checkpoints before, or the oldest that there "
                    "is, with the data after train.spike.skip; without it the update is skipped."),
          key(TRIREME_MEMBER(train.spike.skip))
              .from(1, kMaxSteps)
              .unit("iterations")
              .warn()
              .help("Iterations whose data is skipped then; those up to the spike at least, which "
                    "is the default."),
          key(TRIREME_MEMBER(evaluate.every))
              .from(1, kMaxSteps)
              .units(counts())
              .help("Evaluate on the validation split at each multiple of this."),
          key(TRIREME_MEMBER(evaluate.iterations))
              .by_default("10")
              .from(1, 1e6)
              .unit("iterations")
              .help("Batches of one evaluation."),
          key(TRIREME_MEMBER(evaluate.at_end))
              .derived("true where there is a validation or test part or a task",
                       [](Deck& deck) {
                         deck.evaluate.at_end = has_valid_part(deck) || has_test_part(deck) ||
                                                !deck.evaluate.tasks.empty();
                       })
              .help("Evaluate on the validation and test splits, and the tasks, when the run has "
                    "finished."),
          key(TRIREME_MEMBER(evaluate.tasks))
              .units(counts())
              .words({"perplexity", "wikitext", "lambada", "strict-lambada", "hellaswag", "piqa",
                      "arc", "winogrande", "blimp", "choices", "targets"})
              .help("Tasks of trireme-evaluate on texts, evaluated during training and at its end; "
                    "without `every` with the validation split."),
          key(TRIREME_MEMBER(checkpoint.every))
              .from(1, kMaxSteps)
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
              .from(1, kMaxSteps)
              .units(counts())
              .help("Also keep the checkpoints at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.async))
              .unset_word("auto")
              .help("Write while training continues, from a copy in host memory; auto: on GPUs "
                    "where half of the host's free memory is enough."),
          key(TRIREME_MEMBER(checkpoint.stripes))
              .from(1, 10000)
              .help("On Lustre: storage targets over which each checkpoint is striped, set by 'lfs "
                    "setstripe'; without it the folder's."),
          key(TRIREME_MEMBER(checkpoint.compression))
              .from(1, 9)
              .help("Level of deflate with which checkpoints are compressed, by HDF5's filters; "
                    "local ones are not. 1 is fastest."),
          key(TRIREME_MEMBER(checkpoint.local.path))
              .help(
                  "Folder on a disk of each node for further checkpoints; a restart with the same "
                  "layout uses the newest one, wherever it is."),
          key(TRIREME_MEMBER(checkpoint.local.every))
              .from(1, kMaxSteps)
              .units(counts())
              .help("Write one there at each multiple of this."),
          key(TRIREME_MEMBER(checkpoint.local.partner))
              .by_default("false")
              .help("Each node also keeps a copy of another node's."),
          key(TRIREME_MEMBER(checkpoint.load))
              .help(
                  "Checkpoint that a fresh run starts from; also one of Megatron-LM or DeepSpeed, "
                  "which the run converts."),
      });
}

void log_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(comm.timeout))
              .by_default("2 minutes")
              .above(0)
              .units(times())
              .help("Maximum wait for other ranks in one operation; then the job ends. In an "
                    "iteration the limit is five times the usual iteration, 10 seconds at least, "
                    "where that is less."),
          key(TRIREME_MEMBER(comm.nccl_debug))
              .help("Value of NCCL_DEBUG: VERSION, WARN, INFO or TRACE."),
          key(TRIREME_MEMBER(log.every))
              .by_default("10")
              .from(1, kMaxSteps)
              .unit("iterations")
              .help("Iterations between training lines; those since the last one are reported "
                    "at a stop."),
          key(TRIREME_MEMBER(log.tensorboard.enable))
              .by_default("true")
              .help("Write TensorBoard event files."),
          key(TRIREME_MEMBER(log.tensorboard.dialect))
              .by_default("trireme")
              .help("Names of the TensorBoard tags."),
          key(TRIREME_MEMBER(log.tensorboard.flush_every))
              .by_default("10")
              .from(1, kMaxSteps)
              .unit("events")
              .help("TensorBoard events between flushes."),
          key(TRIREME_MEMBER(log.timers))
              .by_default("false")
              .help(
                  "Log the time of each part of an iteration, minimum and maximum over the ranks."),
          key(TRIREME_MEMBER(log.memory))
              .by_default("true")
              .help("Log the memory in use after the first training line."),
          key(TRIREME_MEMBER(log.norms))
              .by_default("false")
              .help("Log the norm of the parameters and the zeros in the gradient; layers: and the "
                    "norms of each layer's gradient, update and parameters."),
          key(TRIREME_MEMBER(log.gpu_every))
              .from(1, kMaxSteps)
              .unit("iterations")
              .help("Iterations between lines with the GPUs' utilisation."),
          key(TRIREME_MEMBER(log.rank_files))
              .by_default("false")
              .help("Write each node's output and its GPUs' utilisation to <run>/ranks."),
          key(TRIREME_MEMBER(log.console))
              .by_default("short")
              .help("Training lines on a terminal; console.log and other outputs have "
                    "Megatron-LM's."),
          key(TRIREME_MEMBER(log.prometheus))
              .help("File for Prometheus with the newest values (text format), replaced at each "
                    "event."),
          key(TRIREME_MEMBER(log.trace.iterations))
              .from(1, kMaxSteps)
              .unit("iterations")
              .help("Iterations whose timeline is recorded, to <run>/trace.json."),
          key(TRIREME_MEMBER(hooks.checkpoint))
              .help("Command that runs after each checkpoint, while training continues."),
          key(TRIREME_MEMBER(hooks.stop)).help("Command that runs when the run stops."),
          key(TRIREME_MEMBER(hooks.fault))
              .help("Command that runs when the run ends by an error or is killed."),
          key(TRIREME_MEMBER(hooks.timeout))
              .by_default("10 minutes")
              .above(0)
              .units(times())
              .help("Time limit of a hook; then it is killed."),
      });
}

void cluster_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          key(TRIREME_MEMBER(cluster.kinds))
              .help("Nodes of a printed or submitted job: GPUs per node (8), with their type "
                    "(a10:4), and the number of nodes of each kind (1*a100:8, 2*a10:4)."),
          key(TRIREME_MEMBER(cluster.partition)).help("Slurm's partition of such a job."),
          key(TRIREME_MEMBER(cluster.account)).help("Slurm's account of such a job."),
          key(TRIREME_MEMBER(cluster.image)).help("enroot image in which its ranks run."),
          key(TRIREME_MEMBER(cluster.modules)).help("Modules that it loads, separated by spaces."),
          key(TRIREME_MEMBER(cluster.time))
              .above(0)
              .units(times())
              .help("Its time limit; without it estimated, at most a day."),
      });
}

void sweep_keys(std::vector<Key>& rows) {
  rows.insert(
      rows.end(),
      {
          for_sweep("sweep.KEY", "values of any key of the deck")
              .help(
                  "Every combination runs: [a, b], 1..8, {from, to, step} or {from, to, factor}."),
          for_sweep("sweep.zip", "section of KEY: values, or list of such sections")
              .help("Values taken pairwise: the first of each key, the second of each, ..."),
          for_sweep("sweep.cases", "section of NAME: {KEY: value, ...}")
              .help("Named settings; the run folder gets the name."),
          for_sweep("sweep.file", "text")
              .help("File of settings: a line of KEY=VALUE ... for each run."),
          for_sweep("sweep.ranks", "whole number")
              .help("Ranks of a run whose parallel.data is auto; default: the minimum."),
          for_sweep("sweep.jobs", "whole number")
              .help("Runs at a time: 1 on this machine without it, all in a Slurm array."),
          for_sweep("sweep.launcher", "text")
              .help("Words before the program, with {ranks}; without it mpirun or srun."),
          for_sweep("sweep.sbatch", "text")
              .help("Further words for sbatch: --partition=..., --time=..., --gpus-per-node=..."),
      });
}

}  // namespace trireme::deck
