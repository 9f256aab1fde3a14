// Between the threads that speak with clients and the one that runs the model.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "generate/batch_generator.hpp"
#include "generate/generator.hpp"
#include "serve/requests.hpp"

namespace trireme::serve {

/// What has become of one continuation of a request since the last look.
struct Progress {
  std::size_t index = 0;  ///< of CompletionRequest::work
  std::string piece;      ///< further text
  std::vector<generate::ChosenToken> tokens = {};
  bool ended = false;
  generate::Stop stop = generate::Stop::tokens;
};

/// A request on its way. Its client's thread waits for next(); the model's thread adds.
class Completion {
 public:
  explicit Completion(CompletionRequest request_in) : request(std::move(request_in)) {}

  const CompletionRequest request;

  /// The next progress; nothing after `wait`, or once the model's thread has given up.
  std::optional<Progress> next(std::chrono::milliseconds wait);
  /// Whether no progress comes any more and all has been taken.
  bool finished();
  /// Tells the model's thread to drop what is not done.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

 private:
  friend class CompletionQueue;
  void add(Progress progress);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Progress> progress_;
  std::size_t ended_ = 0;  ///< continuations
  std::atomic<bool> abandoned_ = false;
};

/// Counts since the start, for /metrics.
struct Counters {
  std::atomic<std::int64_t> requests = 0, refused = 0, failed = 0;
  std::atomic<std::int64_t> prompt_tokens = 0, generated_tokens = 0;
  std::atomic<std::int64_t> active = 0, waiting = 0;  ///< continuations now
  std::atomic<std::int64_t> passes = 0;
};

/// Runs all requests together on the thread that calls run().
class CompletionQueue {
 public:
  /// Both must outlive this; at most `limit` continuations wait for a place in the batch.
  CompletionQueue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  std::size_t limit)
      : decoder_(decoder), tokenizer_(tokenizer), limit_(limit) {}

  /// Queues a request. Throws BadRequest: 429 when the queue is full, 503 when it is closing. From
  /// any thread.
  std::shared_ptr<Completion> submit(CompletionRequest request);

  /// Runs the model until `stop` is set; then finishes running requests within `drain` and
  /// aborts the rest. Throws as BatchGenerator::step().
  void run(const std::atomic<bool>& stop, std::chrono::milliseconds drain);

  bool closing() const { return closing_; }
  Counters counters;

 private:
  struct Active {
    std::shared_ptr<Completion> completion;
    std::vector<generate::BatchGenerator::Ticket> tickets;
    std::vector<std::unique_ptr<generate::TextStream>> streams;
    std::size_t left = 0;  ///< continuations that have not ended
  };
  void start(generate::BatchGenerator& generator, std::shared_ptr<Completion> completion);
  void take_submitted(generate::BatchGenerator& generator, std::chrono::milliseconds wait);
  void drop_abandoned(generate::BatchGenerator& generator, bool all);
  void count(const generate::BatchGenerator& generator);

  generate::BatchDecoder& decoder_;
  const tokenizer::Tokenizer& tokenizer_;
  std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable submitted_changed_;
  std::deque<std::shared_ptr<Completion>> submitted_;
  std::atomic<bool> closing_ = false;
  std::vector<std::unique_ptr<Active>> active_;  ///< of the model's thread
};

}  // namespace trireme::serve
