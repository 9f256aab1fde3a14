#include "tokenizer/tokenizer.hpp"

#include "core/error.hpp"
#include "tokenizer/implementations.hpp"

namespace trireme::tokenizer {
namespace {

/// One of the spec's files, and whether the type needs it.
void check_file(const TokenizerSpec& spec, const char* option, const std::filesystem::path& path,
                bool needed) {
  if (needed && path.empty())
    throw UsageError("the {} tokenizer needs a '{}' file{}", spec.type, option,
                     spec.type == "gpt2" && !spec.vocab.empty()
                         ? "; a vocabulary of whole words, without merges, belongs to the "
                           "whitespace tokenizer"
                         : "");
  if (!needed && !path.empty())
    throw UsageError("the {} tokenizer has no use for a '{}' file ('{}')", spec.type, option,
                     path.string());
}

void check_files(const TokenizerSpec& spec, bool vocab, bool merges, bool model) {
  check_file(spec, "vocab", spec.vocab, vocab);
  check_file(spec, "merges", spec.merges, merges);
  check_file(spec, "model", spec.model, model);
}

}  // namespace

std::string to_text(const TokenizerIdentity& identity) {
  return fmt::format("{} of {} ids (hash {:016x})", identity.type, identity.vocab_size,
                     identity.hash);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSpec& spec) {
  if (spec.type == "gpt2") {
    check_files(spec, true, true, false);
    return make_gpt2_tokenizer(spec.vocab, spec.merges);
  }
  if (spec.type == "sentencepiece") {
    check_files(spec, false, false, true);
    return make_sentencepiece_tokenizer(spec.model);
  }
  if (spec.type == "whitespace") {
    check_files(spec, true, false, false);
    return make_whitespace_tokenizer(spec.vocab);
  }
  if (spec.type == "bytes") {
    check_files(spec, false, false, false);
    return make_bytes_tokenizer();
  }
  if (spec.type == "wordpiece")
    throw UsageError(
        "the wordpiece tokenizer is not built yet; there are gpt2, sentencepiece, whitespace and "
        "bytes");
  throw UsageError("unknown tokenizer '{}': expected gpt2, sentencepiece, whitespace or bytes",
                   spec.type);
}

}  // namespace trireme::tokenizer
