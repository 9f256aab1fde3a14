// From a prompt to its continuation: sampling tokens from logits, and their text; many
// continuations at a time; beam search.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generate/batch_decoder.hpp"
#include "generate/decoder.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::generate {

/// The largest seed, as in decks.
inline constexpr std::int64_t kMaxSeed = 4294967295;

/// How the next token is sampled. In this order: repetition penalty, temperature, top-k, top-p,
/// min-p.
struct Sampling {
  bool greedy = false;       ///< take the most likely token; the rest is then without effect
  double temperature = 1.0;  ///< logits are divided by it; positive
  std::int64_t top_k = 0;    ///< keep the k most likely tokens; 0 keeps all
  double top_p = 1.0;        ///< keep the fewest most likely tokens whose probabilities exceed this
                             ///< sum, in (0, 1]; 1 keeps all
  double min_p = 0.0;        ///< keep tokens at least this times as likely as the most likely one
  /// Logits of tokens that the context has are divided by it where positive, else multiplied; also
  /// with greedy. Source: Keskar et al., "CTRL" (2019), section 4.1.
  double repetition_penalty = 1.0;
  std::uint64_t seed = 1234;
};

/// Throws UsageError, naming the command line's option, for a value outside its range.
void check_sampling(const Sampling& sampling);

/// Applies the repetition penalty for the tokens of `context` to `logits`.
void penalize_repetition(std::span<double> logits, std::span<const std::int32_t> context,
                         double penalty);

/// The id drawn from `logits`, one for each id that may be chosen; of equal logits the lower id
/// counts as the more likely one. `uniform` in [0, 1) is the random number to draw with. Throws
/// DataError when a logit is not finite. Penalties are the caller's. Source of top-p: Holtzman et
/// al., "The curious case of neural text degeneration" (2020), section 3.1; of min-p: Nguyen et
/// al., "Turning up the heat" (2024), section 3.
std::int32_t choose(std::span<const double> logits, const Sampling& sampling, double uniform);

/// log(sum(exp(x))) over `logits` [V]: all of the model's, as in training, so that `logits` less it
/// are log-probabilities in nats. Throws as choose().
double log_sum_exp(std::span<const double> logits);

/// Why a continuation ended: its document ended, it has the tokens asked for, the model's context
/// is full, or the caller ended it: a stop string was met.
enum class Stop { eod, tokens, context, text };

/// "eod", "tokens", "context" or "stop".
std::string_view name_of(Stop stop);

/// What to generate.
struct Request {
  std::int64_t tokens = 64;  ///< maximum number of tokens to add
  Sampling sampling;
  std::int64_t vocab = 0;  ///< ids from here on are never chosen; 0: the model's vocabulary
  std::optional<std::int32_t> eod;  ///< the id that ends a document
  /// Most likely tokens to report next to each chosen one; unset: no log-probabilities.
  std::optional<int> alternatives = std::nullopt;
};

/// A token and its log-probability in nats among all ids of the model, before penalties,
/// temperature and filters.
struct TokenScore {
  std::int32_t id = 0;
  double log_probability = 0.0;
};

/// A token of a continuation.
struct ChosenToken {
  TokenScore score;                      ///< log-probability 0 without Request::alternatives
  std::vector<TokenScore> alternatives;  ///< the most likely first; the chosen one may be one
};

/// The tokens after a prompt, without the one that ended the document.
struct Continuation {
  std::vector<std::int32_t> ids;
  Stop stop = Stop::tokens;
  std::vector<ChosenToken> tokens = {};  ///< one for each id, with Request::alternatives
};

/// Draws the token that follows `context` of sample number `sample`. `logits` [V], all of the
/// model's, are changed. The random number depends on the seed, the sample and the length of the
/// context alone. Throws as choose().
ChosenToken next_token(std::span<double> logits, std::span<const std::int32_t> context,
                       const Request& request, std::uint64_t sample);

/// How many of the largest logits next_token() needs for `request`: 1 to kernels::kMaxTopLogits, or
/// 0 where it needs all.
std::int64_t needed_logits(const Request& request);

/// The same from the needed_logits() or more largest logits, `top`, for a context of `length`
/// tokens.
ChosenToken next_token(const TopTokens& top, std::size_t length, const Request& request,
                       std::uint64_t sample);

/// Continues prompts with a Decoder. The random number of a token depends on the seed, the number
/// of the sample and the token's position alone, so neither other prompts nor other samples change
/// a continuation.
class Generator {
 public:
  /// `decoder` must outlive this.
  Generator(Decoder& decoder, const Request& request);

  /// Throws DataError unless the model's context holds `prompt` and a token more, UsageError when
  /// the prompt is empty.
  void check_prompt(std::span<const std::int32_t> prompt) const;

  /// Continuation number `sample` of `prompt`. Throws as check_prompt and choose() do.
  Continuation generate(std::span<const std::int32_t> prompt, std::uint64_t sample = 0);

 private:
  Decoder& decoder_;
  Request request_;
};

/// What `ids` add to the text of `prompt`: the two are decoded together, so that a space between
/// them is kept. Always UTF-8: parts of characters, such as an end cut inside one, become U+FFFD.
std::string continuation_text(const tokenizer::Tokenizer& tokenizer,
                              std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> ids);

/// Turns tokens into text, piece by piece. The pieces together are the continuation's text: valid
/// UTF-8 without what a stop string cuts off.
class TextStream {
 public:
  /// `tokenizer` must outlive this.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t> prompt,
             std::vector<std::string> stop_strings = {});

  /// Takes a token. Returns the text that no later token changes: a part of a character, or of a
  /// stop string, is kept back. Nothing once stopped().
  std::string push(std::int32_t id);
  /// What was kept back, at the end.
  std::string finish();
  /// Whether a stop string was met.
  bool stopped() const { return stopped_; }
  /// All of the text so far, what is kept back included.
  const std::string& text() const { return text_; }

 private:
  std::size_t settled() const;
  std::string emit(std::size_t end);
  /// Moves ids whose text no longer changes from ids_ to context_, so that a token takes the same
  /// time however long the text is.
  void shorten();

  const tokenizer::Tokenizer& tokenizer_;
  std::vector<std::int32_t> context_;  ///< the last tokens before ids_
  std::vector<std::int32_t> ids_;      ///< the last new tokens
  std::string before_;                 ///< the text of the new tokens before ids_
  std::vector<std::string> stop_strings_;
  std::string text_;
  std::size_t emitted_ = 0;
  bool stopped_ = false;
};

// Many continuations at a time: sequences join and leave the batch at every token (continuous
// batching; Yu et al., "Orca", 2022).

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
  /// What one pass computes of the sequences; `sampled` are the indices of those that get a token.
  std::vector<Chunk> take_chunks(std::vector<std::size_t>& sampled);
  /// Runs the pass, and chooses the token of each of `sampled`.
  std::vector<ChosenToken> choose_tokens(const std::vector<Chunk>& chunks,
                                         const std::vector<std::size_t>& sampled);
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

// Beam search: the most likely continuations, as far as a bounded number of partial ones shows
// them.

struct BeamOptions {
  int beams = 4;                ///< partial continuations that are kept; twice as many caches
  double length_penalty = 1.0;  ///< scores are divided by length^penalty; 0: not at all
  std::int64_t tokens = 64;     ///< maximum number of tokens to add
  std::int64_t vocab = 0;       ///< ids from here on are never chosen; 0: the model's vocabulary
  std::optional<std::int32_t> eod;  ///< the id that ends a document
};

/// A continuation and its score: the sum of its tokens' log-probabilities, the end of the document
/// included, divided by (number of these tokens)^length_penalty.
struct Beam {
  std::vector<std::int32_t> ids;  ///< without the end of the document
  double log_probability = 0.0;   ///< the sum
  double score = 0.0;
  Stop stop = Stop::tokens;
};

/// Throws DataError unless the cache holds whatever beams a search from `prompt` may keep, and as
/// BatchGenerator::check_prompt().
void check_beam_search(const BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                       const BeamOptions& options);

/// The best continuations of `prompt`, at most options.beams, the best first. At each step the
/// `beams` most likely extensions of all partial continuations are kept; one that ends its document
/// is complete and takes no place. `decoder` needs 2 * beams caches, which no other work uses.
/// Throws as choose(), and before the first pass as check_beam_search().
std::vector<Beam> beam_search(BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                              const BeamOptions& options);

}  // namespace trireme::generate
