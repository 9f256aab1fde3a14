// The options of trireme-generate beyond those of the model, what it reads and prints, and its
// dialogue on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app.hpp"
#include "core/text.hpp"
#include "generate/batch_decoder.hpp"
#include "generate/generator.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme {

/// --prompt, --input and what is printed.
po::options_description work_options();
/// How tokens are chosen.
po::options_description sampling_options();
/// Throws UsageError for a value outside its range.
generate::Sampling sampling_of(const po::variables_map& values);
/// Throws UsageError for options that exclude each other and for counts below 1.
void check_options(const po::variables_map& values);

// ---- prompts and their continuations

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// The prompts of the options, without ids. Throws IoError and DataError.
std::vector<Prompt> read_prompts(const po::variables_map& values);

/// The ids of a prompt; those of an empty one start a document. Throws UsageError where the
/// tokenizer has no token for that.
std::vector<std::int32_t> encode(const tokenizer::Tokenizer& tokenizer, const std::string& text);

/// A continuation as it is printed.
struct Result {
  std::string text;
  generate::Continuation continuation;
  std::optional<double> score = std::nullopt;  ///< of a beam
  bool missing = false;                        ///< nothing is printed
};

/// Prints the results in the order of prompts and samples, to standard output or, at the end, to
/// the file of --output.
class Printer {
 public:
  /// All must outlive this.
  Printer(const po::variables_map& values, const std::vector<Prompt>& prompts,
          const tokenizer::Tokenizer& tokenizer);

  /// Whether the one text is printed piece by piece.
  bool streams() const { return !json_ && !several_; }
  /// Prints its prompt.
  void begin();
  void piece(const std::string& text) { write(text); }

  /// The result of a sample of a prompt, `number` = prompt * samples + sample.
  void add(std::size_t number, Result result);
  /// There is no such result: a search found fewer.
  void pass_over(std::size_t number);
  void finish() const;

 private:
  void print(std::size_t number);
  void write(const std::string& text);

  const std::vector<Prompt>& prompts_;
  const tokenizer::Tokenizer& tokenizer_;
  std::string path_;      ///< of --output
  std::string gathered_;  ///< for it
  std::size_t samples_;
  bool json_, several_, begun_ = false;
  std::vector<std::optional<Result>> results_;
  std::size_t next_ = 0;
  std::optional<Progress> meter_;  ///< with --output: nothing else shows that texts end
};

// ---- the dialogue

/// Reads prompts from the terminal, edited and with a history where libedit is there, and prints
/// each one's continuation while it is generated, until the end of the input. Ctrl-C ends a text.
void run_dialogue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  const generate::Request& request, const std::vector<std::string>& stop_strings);

}  // namespace trireme
