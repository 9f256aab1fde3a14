#include "generate/generator.hpp"

#include <array>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace trireme::generate {

std::string_view name_of(Stop stop) {
  constexpr auto kNames = std::to_array<std::string_view>({"eod", "tokens", "context"});
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
  while (context.size() < std::min(wanted, capacity)) {
    const auto logits = decoder_.logits(context).first(request_.vocab);
    const double uniform = philox_uniform(request_.sampling.seed, sample, context.size());
    const std::int32_t id = choose(logits, request_.sampling, uniform);
    if (id == request_.eod) {
      stop = Stop::eod;
      break;
    }
    context.push_back(id);
  }
  return {.ids = {context.begin() + static_cast<std::ptrdiff_t>(prompt.size()), context.end()},
          .stop = stop};
}

}  // namespace trireme::generate
