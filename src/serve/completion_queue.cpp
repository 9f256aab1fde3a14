// Requests on their way between clients and the model, and the text of each token.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/clock.hpp"
#include "serve/server.hpp"

namespace trireme::serve {

std::optional<Progress> Completion::next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] {
    return !progress_.empty() || ended_ == request.work.size() || abandoned_;
  });
  if (progress_.empty()) return std::nullopt;
  Progress first = std::move(progress_.front());
  progress_.pop_front();
  return first;
}

bool Completion::finished() {
  const std::lock_guard lock(mutex_);
  return progress_.empty() && (ended_ == request.work.size() || abandoned_);
}

void Completion::add(Progress progress) {
  const std::lock_guard lock(mutex_);
  ended_ += progress.ended;
  progress_.push_back(std::move(progress));
  changed_.notify_all();
}

void Completion::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = ended_ < request.work.size();
  abandoned_ = true;
  changed_.notify_all();
}

std::string Counters::text() const {
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, std::int64_t value) {
    text += fmt::format("# HELP trireme_{0} {2}\n# TYPE trireme_{0} {1}\ntrireme_{0} {3}\n", name,
                        type, help, value);
  };
  add("requests_total", "counter", "HTTP requests.", requests);
  add("requests_refused_total", "counter", "Requests answered with an error.", refused);
  add("requests_failed_total", "counter", "Internal errors.", failed);
  add("prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens);
  add("generated_tokens_total", "counter", "Tokens generated.", generated_tokens);
  add("passes_total", "counter", "Forward passes of the batch.", passes);
  add("continuations_active", "gauge", "Continuations in the batch.", active);
  add("continuations_waiting", "gauge", "Continuations in the queue.", waiting);
  return text;
}

std::shared_ptr<Completion> CompletionQueue::submit(CompletionRequest request) {
  const auto size = static_cast<std::int64_t>(request.work.size());
  auto completion = std::make_shared<Completion>(std::move(request));
  const std::lock_guard lock(mutex_);
  if (closing_) throw BadRequest(503, "the server is shutting down");
  if (counters.waiting + size > static_cast<std::int64_t>(limit_))
    throw BadRequest(429, "the queue is full: try again later");
  counters.waiting += size;
  submitted_.push_back(completion);
  submitted_changed_.notify_all();
  return completion;
}

void CompletionQueue::run(const std::atomic<bool>& stop, std::chrono::milliseconds drain) {
  try {
    serve(stop, drain);
  } catch (...) {
    fail_all();  // clients would wait for answers that do not come
    throw;
  }
}

void CompletionQueue::fail_all() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  std::vector<std::shared_ptr<Completion>> all(submitted_.begin(), submitted_.end());
  for (const auto& active : active_) all.push_back(active->completion);
  for (const auto& completion : all) completion->fail();
}

void CompletionQueue::serve(const std::atomic<bool>& stop, std::chrono::milliseconds drain) {
  constexpr double kKeepAliveSeconds = 10.0;
  generate::BatchGenerator generator(decoder_);
  Stopwatch since_signal;
  std::optional<Stopwatch> closing;
  while (true) {
    if (stop && !closing) {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      closing.emplace();
    }
    const bool idle = generator.active() + generator.waiting() == 0;
    take_submitted(generator, std::chrono::milliseconds(idle ? 50 : 0));
    const bool late = closing && closing->seconds() * 1e3 > static_cast<double>(drain.count());
    drop_abandoned(generator, late);
    if (generator.step()) {
      ++counters.passes;
      since_signal = {};
    } else {
      if (closing) break;
      // The other ranks wait for a command.
      if (since_signal.seconds() > kKeepAliveSeconds) {
        decoder_.keep_alive();
        since_signal = {};
      }
    }
    std::erase_if(active_, [](const auto& each) { return each->left == 0; });
    count(generator);
  }
  count(generator);
}

void CompletionQueue::take_submitted(generate::BatchGenerator& generator,
                                     std::chrono::milliseconds wait) {
  std::deque<std::shared_ptr<Completion>> taken;
  {
    std::unique_lock lock(mutex_);
    if (wait.count() > 0)
      submitted_changed_.wait_for(lock, wait, [&] { return !submitted_.empty(); });
    taken.swap(submitted_);
  }
  for (auto& completion : taken) start(generator, std::move(completion));
}

void CompletionQueue::start(generate::BatchGenerator& generator,
                            std::shared_ptr<Completion> completion) {
  active_.push_back(std::make_unique<Active>());
  Active* active = active_.back().get();
  active->completion = completion;
  active->left = completion->request.work.size();
  const CompletionRequest& request = completion->request;
  for (std::size_t i = 0; i < request.work.size(); ++i) {
    const Work& work = request.work[i];
    counters.prompt_tokens += std::ssize(work.ids);
    active->streams.push_back(
        std::make_unique<TokenTexts>(tokenizer_, work.ids, request.stop_strings));
    TokenTexts* stream = active->streams.back().get();
    const bool scores = request.log_probabilities || request.segments;
    active->tickets.push_back(generator.submit(
        {.prompt = work.ids,
         .request = request.generate,
         .sample = work.sample,
         .on_token =
             [this, active, stream, i, scores,
              generated = std::int64_t{0}](const generate::ChosenToken& token) mutable {
               ++counters.generated_tokens;
               Progress progress{
                   .index = i, .piece = stream->push(token), .generated = ++generated};
               std::vector<TokenText> tokens = stream->take();
               if (scores) progress.tokens = std::move(tokens);
               if (!progress.tokens.empty() || !progress.piece.empty())
                 active->completion->add(std::move(progress));
               return !stream->stopped();
             },
         .on_end =
             [active, stream, i, scores](generate::Continuation continuation) {
               --active->left;
               Progress progress{.index = i,
                                 .piece = stream->finish(),
                                 .generated = std::ssize(continuation.ids),
                                 .ended = true,
                                 .stop = continuation.stop};
               if (scores) progress.tokens = stream->take();
               active->completion->add(std::move(progress));
             }}));
  }
}

void CompletionQueue::drop_abandoned(generate::BatchGenerator& generator, bool all) {
  for (const auto& active : active_) {
    if (active->left == 0 || !(all || active->completion->abandoned())) continue;
    for (const auto ticket : active->tickets) generator.cancel(ticket);
    active->left = 0;
    active->completion->abandon();
    const std::lock_guard lock(active->completion->mutex_);
    active->completion->changed_.notify_all();
  }
}

void CompletionQueue::count(const generate::BatchGenerator& generator) {
  const std::lock_guard lock(mutex_);
  std::int64_t waiting = static_cast<std::int64_t>(generator.waiting());
  for (const auto& completion : submitted_) waiting += std::ssize(completion->request.work);
  counters.waiting = waiting;
  counters.active = static_cast<std::int64_t>(generator.active());
}

// ---- the text of each token

namespace {

/// Tokens that are decoded with an alternative, so that a blank before it is kept.
constexpr std::size_t kContextTokens = 4;
/// U+FFFD: what the start of a character decodes to.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void keep_last(std::vector<std::int32_t>& ids) {
  if (ids.size() > kContextTokens)
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(kContextTokens));
}

/// The bytes of `text` before the start of a character at its end.
std::size_t whole_bytes(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

/// UTF-8's code points in `text`.
std::size_t code_points(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

TokenTexts::TokenTexts(const tokenizer::Tokenizer& tokenizer,
                       const std::vector<std::int32_t>& prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stream_(tokenizer, prompt, std::move(stop_strings)), before_(prompt) {
  keep_last(before_);
}

std::string TokenTexts::push(const generate::ChosenToken& token) {
  if (stopped()) return "";
  std::string piece = stream_.push(token.score.id);
  emitted_ += piece.size();
  Waiting waiting{.token = {.text = {}, .log_probability = token.score.log_probability}, .end = 0};
  for (const auto& other : token.alternatives)
    waiting.token.alternatives.emplace_back(
        generate::continuation_text(tokenizer_, before_, std::array{other.id}),
        other.log_probability);
  const std::string& text = stream_.text();
  waiting.end = std::max(stopped() ? text.size() : whole_bytes(text),
                         waiting_.empty() ? taken_ : waiting_.back().end);
  waiting_.push_back(std::move(waiting));
  before_.push_back(token.score.id);
  keep_last(before_);
  return piece;
}

std::string TokenTexts::finish() {
  std::string piece = stream_.finish();
  emitted_ += piece.size();
  if (!waiting_.empty()) waiting_.back().end = std::max(emitted_, waiting_.back().end);
  return piece;
}

std::vector<TokenText> TokenTexts::take() {
  const std::string& text = stream_.text();
  std::vector<TokenText> tokens;
  std::size_t count = 0;
  for (Waiting& each : waiting_) {
    // A stop string has cut the text off before it.
    if (stopped() && taken_ >= text.size()) {
      count = waiting_.size();
      break;
    }
    // The last one may still get the rest of the text.
    if (!stopped() &&
        (each.end > emitted_ || (emitted_ < text.size() && &each == &waiting_.back())))
      break;
    const std::size_t end = std::min(each.end, text.size());
    each.token.text = text.substr(taken_, end - taken_);
    each.token.offset = offset_;
    taken_ = end;
    offset_ += code_points(each.token.text);
    tokens.push_back(std::move(each.token));
    ++count;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  return tokens;
}

}  // namespace trireme::serve
