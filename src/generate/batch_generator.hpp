// Many continuations at a time: sequences join and leave the batch at every token (continuous
// batching; Yu et al., "Orca", 2022).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "generate/batch_decoder.hpp"
#include "generate/generator.hpp"

namespace trireme::generate {

/// One continuation to make.
struct Job {
  std::vector<std::int32_t> prompt;  ///< at least one token
  Request request;                   ///< vocab 0: the model's
  std::uint64_t sample = 0;          ///< keys its random numbers
  /// Called with each token; false ends the continuation after it (Stop::text).
  std::function<bool(const ChosenToken& token)> on_token = {};
  /// Called once at the end; not for a cancelled job.
  std::function<void(Continuation continuation)> on_end = {};
};

/// Generates for all its jobs together. What a job gets depends on no other job but for rounding:
/// each has its own cache and random numbers. Used on the first rank, by one thread.
class BatchGenerator {
 public:
  using Ticket = std::int64_t;

  /// `decoder` must outlive this.
  explicit BatchGenerator(BatchDecoder& decoder) : decoder_(decoder) {}

  /// Throws UsageError for an empty prompt, DataError unless the model's context, and the cache,
  /// hold the prompt and a token more.
  static void check_prompt(const BatchDecoder& decoder, std::span<const std::int32_t> prompt);
  void check_prompt(std::span<const std::int32_t> prompt) const { check_prompt(decoder_, prompt); }

  /// Queues a job; throws as check_prompt().
  Ticket submit(Job job);
  /// Drops a job, if it has not ended, without calling on_end.
  void cancel(Ticket ticket);

  /// Runs one pass: the next token of each sequence, and prompts as far as a pass holds them.
  /// False where there is no job. Calls the jobs' functions. Throws as choose().
  bool step();

  std::size_t waiting() const { return queue_.size(); }
  std::size_t active() const { return active_.size(); }

 private:
  struct Sequence {
    Job job;
    Ticket ticket = 0;
    int slot = 0;
    std::vector<std::int32_t> context;  ///< the prompt and what has been generated
    std::int64_t cached = 0;            ///< tokens of it whose keys and values are in the cache
    std::size_t limit = 0;              ///< length of the context at which it ends
    std::int64_t blocks = 0;            ///< of the cache, which the whole continuation needs
    std::vector<ChosenToken> tokens = {};
  };

  /// Starts jobs, in turn, while there is a slot and the cache has room for the whole of the next.
  void start_waiting();
  /// Adds the token that follows; true when the sequence has ended.
  bool advance(Sequence& sequence, ChosenToken token);
  bool end(Sequence& sequence, Stop stop);
  /// Takes those that `ended(sequence)` says out of the batch.
  template <typename Ended>
  void remove(const Ended& ended);

  BatchDecoder& decoder_;
  Ticket next_ticket_ = 0;
  std::deque<Sequence> queue_;
  std::vector<Sequence> active_;  ///< in the order in which they began
  std::int64_t promised_ = 0;     ///< blocks of these
};

}  // namespace trireme::generate
