#include "generate/generator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::generate {
namespace {

/// The ids that top-k leaves; the most likely first when a filter needs that order.
std::vector<std::int32_t> candidates(std::span<const double> logits, const Sampling& sampling) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (sampling.top_k == 0 && sampling.top_p == 1.0) return ids;
  const auto size = static_cast<std::int64_t>(ids.size());
  const std::int64_t kept = sampling.top_k == 0 ? size : std::min(sampling.top_k, size);
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  ids.resize(kept);
  return ids;
}

/// How many of `weights`, largest first, top-p keeps: a token stays while those before it do not
/// exceed the threshold, so the one that crosses it stays too.
std::size_t top_p_count(const std::vector<double>& weights, double top_p) {
  const double threshold = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = 0;
  for (double sum = 0.0; count < weights.size() && sum <= threshold; ++count) sum += weights[count];
  return count;
}

void require_finite(std::span<const double> logits) {
  if (!std::ranges::all_of(logits, [](double x) { return std::isfinite(x); }))
    throw CodedError<ExitCode::diverged>(
        "the model's logits are not finite: its training has diverged");
}

/// The one of `ids` that `uniform` falls on, after top-p and min-p. `logits` are theirs, largest
/// first if top-p is on.
std::int32_t draw(std::span<const std::int32_t> ids, std::vector<double> logits,
                  const Sampling& sampling, double uniform) {
  const double best = *std::ranges::max_element(logits);
  std::vector<double>& weights = logits;
  for (double& weight : weights) weight = std::exp((weight - best) / sampling.temperature);
  if (sampling.top_p < 1.0) weights.resize(top_p_count(weights, sampling.top_p));
  // The most likely token weighs 1.
  for (double& weight : weights)
    if (weight < sampling.min_p) weight = 0.0;

  const double target = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::int32_t chosen = 0;
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size() && sum <= target; ++i) {
    if (weights[i] == 0.0) continue;
    chosen = ids[i];
    sum += weights[i];
  }
  return chosen;
}

}  // namespace

void check_sampling(const Sampling& sampling) {
  if (!(sampling.temperature > 0.0 && std::isfinite(sampling.temperature)))
    throw UsageError(
        "--temperature {}: expected a number above 0 (--greedy takes the most likely "
        "token)",
        sampling.temperature);
  if (sampling.top_k < 0)
    throw UsageError("--top-k {}: expected 0 (no limit) or more", sampling.top_k);
  if (!(sampling.top_p > 0.0 && sampling.top_p <= 1.0))
    throw UsageError("--top-p {}: expected a number above 0 and at most 1 (no limit)",
                     sampling.top_p);
  if (!(sampling.min_p >= 0.0 && sampling.min_p <= 1.0))
    throw UsageError("--min-p {}: expected a number from 0 (no limit) to 1", sampling.min_p);
  if (!(sampling.repetition_penalty > 0.0 && std::isfinite(sampling.repetition_penalty)))
    throw UsageError("--repetition-penalty {}: expected a number above 0 (1: none)",
                     sampling.repetition_penalty);
  if (sampling.seed > static_cast<std::uint64_t>(kMaxSeed))
    throw UsageError("--seed {}: expected 0 to {}", static_cast<std::int64_t>(sampling.seed),
                     kMaxSeed);
}

void penalize_repetition(std::span<double> logits, std::span<const std::int32_t> context,
                         double penalty) {
  if (penalty == 1.0) return;
  std::vector<std::int32_t> ids(context.begin(), context.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= std::ssize(logits)) continue;
    double& logit = logits[id];
    logit = logit > 0.0 ? logit / penalty : logit * penalty;
  }
}

std::int32_t choose(std::span<const double> logits, const Sampling& sampling, double uniform) {
  TRIREME_CHECK(!logits.empty(), "there is no token to choose");
  require_finite(logits);
  if (sampling.greedy)
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  const std::vector<std::int32_t> ids = candidates(logits, sampling);
  std::vector<double> left(ids.size());
  std::ranges::transform(ids, left.begin(), [&](std::int32_t id) { return logits[id]; });
  return draw(ids, std::move(left), sampling, uniform);
}

double log_sum_exp(std::span<const double> logits) {
  require_finite(logits);
  const double best = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - best);
  return best + std::log(sum);
}

std::int64_t needed_logits(const Request& request) {
  const Sampling& sampling = request.sampling;
  if (request.alternatives || sampling.repetition_penalty != 1.0) return 0;
  if (sampling.greedy) return 1;
  return sampling.top_k <= kernels::kMaxTopLogits ? sampling.top_k : 0;
}

ChosenToken next_token(const TopTokens& top, std::size_t length, const Request& request,
                       std::uint64_t sample) {
  require_finite(top.logits);
  const auto count = static_cast<std::size_t>(needed_logits(request));
  TRIREME_CHECK(count >= 1 && count <= top.ids.size(), "{} of {} largest logits", top.ids.size(),
                count);
  ChosenToken token;
  token.score.id =
      request.sampling.greedy
          ? top.ids.front()
          : draw(std::span(top.ids).first(count), {top.logits.begin(), top.logits.begin() + count},
                 request.sampling, philox_uniform(request.sampling.seed, sample, length));
  return token;
}

ChosenToken next_token(std::span<double> logits, std::span<const std::int32_t> context,
                       const Request& request, std::uint64_t sample) {
  ChosenToken token;
  std::optional<double> log_sum;
  if (request.alternatives) log_sum = log_sum_exp(logits);
  logits = logits.first(request.vocab);
  std::vector<double> raw;
  if (request.alternatives) {
    raw.assign(logits.begin(), logits.end());
    std::vector<std::int32_t> ids(raw.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto kept = std::min<std::ptrdiff_t>(*request.alternatives, std::ssize(ids));
    std::partial_sort(
        ids.begin(), ids.begin() + kept, ids.end(),
        [&](std::int32_t a, std::int32_t b) { return raw[a] != raw[b] ? raw[a] > raw[b] : a < b; });
    for (std::ptrdiff_t i = 0; i < kept; ++i)
      token.alternatives.push_back({ids[i], raw[ids[i]] - *log_sum});
  }
  penalize_repetition(logits, context, request.sampling.repetition_penalty);
  token.score.id = choose(logits, request.sampling,
                          philox_uniform(request.sampling.seed, sample, context.size()));
  if (log_sum) token.score.log_probability = raw[token.score.id] - *log_sum;
  return token;
}

std::string_view name_of(Stop stop) {
  constexpr auto kNames = std::to_array<std::string_view>({"eod", "tokens", "context", "stop"});
  return kNames[static_cast<std::size_t>(stop)];
}

Generator::Generator(Decoder& decoder, const Request& request)
    : decoder_(decoder), request_(request) {
  if (request_.vocab == 0) request_.vocab = decoder.vocab();
  TRIREME_CHECK(request_.vocab <= decoder.vocab(), "{} ids to choose from in a vocabulary of {}",
                request_.vocab, decoder.vocab());
}

void Generator::check_prompt(std::span<const std::int32_t> prompt) const {
  if (prompt.empty()) throw UsageError("the prompt is empty: it must have at least one token");
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (size >= decoder_.capacity())
    throw DataError(
        "the prompt has {} tokens, but the model's context holds {} (model.positions), of which "
        "one "
        "at least is for the continuation",
        size, decoder_.capacity());
}

Continuation Generator::generate(std::span<const std::int32_t> prompt, std::uint64_t sample) {
  check_prompt(prompt);
  std::vector<std::int32_t> context(prompt.begin(), prompt.end());
  const std::size_t wanted = context.size() + request_.tokens;
  const auto capacity = static_cast<std::size_t>(decoder_.capacity());
  Stop stop = wanted > capacity ? Stop::context : Stop::tokens;
  std::vector<ChosenToken> tokens;
  while (context.size() < std::min(wanted, capacity)) {
    const auto found = decoder_.logits(context);
    std::vector<double> logits(found.begin(), found.end());
    ChosenToken token = next_token(logits, context, request_, sample);
    if (token.score.id == request_.eod) {
      stop = Stop::eod;
      break;
    }
    context.push_back(token.score.id);
    if (request_.alternatives) tokens.push_back(std::move(token));
  }
  return {.ids = {context.begin() + static_cast<std::ptrdiff_t>(prompt.size()), context.end()},
          .stop = stop,
          .tokens = std::move(tokens)};
}

std::string continuation_text(const tokenizer::Tokenizer& tokenizer,
                              std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), ids.begin(), ids.end());
  const std::string before = tokenizer.decode(prompt);
  const std::string text = tokenizer.decode(all);
  // A decoder that joins the last piece of the prompt with the first new one has changed it.
  const bool extends = text.starts_with(before);
  return tokenizer::replace_invalid_utf8(extends ? text.substr(before.size())
                                                 : tokenizer.decode(ids));
}

// ---- text while tokens come

namespace {

/// U+FFFD: what the start of a character decodes to.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
/// Tokens before new ones that are decoded with them: more than a character or a word has.
constexpr std::size_t kContextTokens = 64;

void keep_last(std::vector<std::int32_t>& ids, std::size_t count) {
  if (ids.size() > count) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(count));
}

}  // namespace

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), context_(std::move(prompt)), stop_strings_(std::move(stop_strings)) {
  std::erase(stop_strings_, "");
  keep_last(context_, kContextTokens);
}

std::string TextStream::push(std::int32_t id) {
  if (stopped_) return "";
  ids_.push_back(id);
  text_ = before_ + continuation_text(tokenizer_, context_, ids_);
  std::size_t stop = std::string::npos;
  for (const std::string& each : stop_strings_) stop = std::min(stop, text_.find(each, emitted_));
  if (stop != std::string::npos) {
    stopped_ = true;
    text_.resize(stop);
    return emit(stop);
  }
  if (ids_.size() >= 2 * kContextTokens) shorten();
  return emit(settled());
}

void TextStream::shorten() {
  const auto cut = ids_.end() - kContextTokens;
  const std::string text = continuation_text(tokenizer_, context_, std::span(ids_.begin(), cut));
  // A cut inside a character waits for the next token.
  if (text.ends_with(kReplacement) || !text_.substr(before_.size()).starts_with(text)) return;
  before_ += text;
  context_.insert(context_.end(), ids_.begin(), cut);
  ids_.erase(ids_.begin(), cut);
  keep_last(context_, kContextTokens);
}

std::string TextStream::finish() { return emit(text_.size()); }

std::size_t TextStream::settled() const {
  std::string_view settled = text_;
  // The start of a character decodes to U+FFFD until its other bytes come.
  while (settled.ends_with(kReplacement)) settled.remove_suffix(kReplacement.size());
  std::size_t kept_back = 0;
  for (const std::string& each : stop_strings_)
    for (std::size_t size = std::min(each.size() - 1, settled.size()); size > kept_back; --size)
      if (settled.ends_with(std::string_view(each).substr(0, size))) kept_back = size;
  return settled.size() - kept_back;
}

std::string TextStream::emit(std::size_t end) {
  if (end <= emitted_) return "";
  std::string piece = text_.substr(emitted_, end - emitted_);
  emitted_ = end;
  return piece;
}

}  // namespace trireme::generate
