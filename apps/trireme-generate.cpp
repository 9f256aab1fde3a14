// trireme-generate: continues prompts with the model of a checkpoint.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app.hpp"
#include "checkpoint/folder.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "generate/checkpoint_model.hpp"
#include "generate/generator.hpp"
#include "plan/setup.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-generate";
constexpr const char* kUsage =
    "Usage: trireme-generate --checkpoint PATH [--prompt TEXT... | --input FILE] [options]\n"
    "Continues each prompt with the model of a checkpoint, in one process. Without --prompt and\n"
    "--input the prompts are the lines of standard input; an empty prompt, or none, starts a new\n"
    "document. OMP_NUM_THREADS sets the number of threads.\n\n";

// ---------------------------------------------------------------------------- options

po::options_description work_options() {
  po::options_description options("Model, prompts and output");
  options.add_options()  //
      ("checkpoint", po::value<std::string>()->required()->value_name("PATH"),
       "a checkpoint file, or a run's folder: its newest checkpoint")  //
      ("prompt", po::value<std::vector<std::string>>()->value_name("TEXT"),
       "a text to continue; may be repeated")  //
      ("input", po::value<std::string>()->value_name("FILE"),
       "a file with a prompt per line, empty lines are skipped; - is standard input")  //
      ("samples", po::value<std::int64_t>()->default_value(1)->value_name("N"),
       "continuations per prompt")  //
      ("output", po::value<std::string>()->value_name("FILE"),
       "write to this file instead of standard output")  //
      ("device", po::value<std::string>()->default_value("auto")->value_name("WHERE"),
       "host, cuda (the first GPU, in fp32), or auto: cuda if there is a GPU")  //
      ("json", po::bool_switch(),
       "print a JSON object per continuation: prompt, text (added), tokens (ids of the text), "
       "finished (whether the document ended), stop (eod, tokens or context)");
  return options;
}

po::options_description sampling_options() {
  const generate::Sampling defaults;
  po::options_description options("Sampling");
  options.add_options()  //
      ("tokens", po::value<std::int64_t>()->default_value(64)->value_name("N"),
       "maximum of tokens to add; fewer if the document ends or the model's context is full")  //
      ("greedy", po::bool_switch(), "always take the most likely token")                       //
      ("temperature", po::value<double>()->default_value(defaults.temperature)->value_name("X"),
       "divide the logits by X: below 1 less varied, above 1 more varied")  //
      ("top-k", po::value<std::int64_t>()->default_value(defaults.top_k)->value_name("K"),
       "keep the K most likely tokens; 0 keeps all")  //
      ("top-p", po::value<double>()->default_value(defaults.top_p)->value_name("P"),
       "then keep the smallest set of most likely tokens whose probability exceeds P; 1 keeps "
       "all")  //
      ("seed",
       po::value<std::int64_t>()
           ->default_value(static_cast<std::int64_t>(defaults.seed))
           ->value_name("S"),
       "seed; random numbers depend only on it, the sample and the position")  //
      ("recompute", po::bool_switch(),
       "recompute all positions for each token instead of using the KV cache");
  return options;
}

po::options_description tokenizer_override_options() {
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  po::options_description options("Tokenizer (default: what the checkpoint's deck names)");
  options.add_options()                                                                   //
      ("tokenizer", text("TYPE"), "gpt2, sentencepiece, wordpiece, whitespace or bytes")  //
      ("vocab", text("FILE"),
       "vocabulary: JSON (gpt2, whitespace) or a token per line (wordpiece)")  //
      ("merges", text("FILE"), "merges (gpt2)")                                //
      ("model", text("FILE"), "model (sentencepiece)")                         //
      ("lowercase", po::value<bool>()->value_name("true|false"),
       "whether the vocabulary is uncased (wordpiece)");
  return options;
}

/// Where --device says to compute.
std::unique_ptr<device::Backend> backend_of(const po::variables_map& values) {
  const auto where = values["device"].as<std::string>();
  if (where != "auto" && where != "host" && where != "cuda")
    throw UsageError("--device {}: expected auto, host or cuda", where);
  const bool gpu = where != "host" && !device::visible_gpus().empty();
  if (where == "cuda" && !gpu)
    throw CodedError<ExitCode::failure>("--device cuda: {}", device::why_no_gpu());
  // Products are of every length that a context passes through, and each is seldom taken.
  return gpu ? device::make_cuda_backend(0, "", device::GemmChoice::heuristic)
             : device::make_host_backend(device::threads_for_rank(1));
}

std::int64_t at_least_one(const po::variables_map& values, const char* option) {
  const auto value = values[option].as<std::int64_t>();
  if (value < 1) throw UsageError("--{} {}: expected 1 or more", option, value);
  return value;
}

generate::Sampling sampling_of(const po::variables_map& values) {
  const generate::Sampling sampling{
      .greedy = values["greedy"].as<bool>(),
      .temperature = values["temperature"].as<double>(),
      .top_k = values["top-k"].as<std::int64_t>(),
      .top_p = values["top-p"].as<double>(),
      .seed = static_cast<std::uint64_t>(values["seed"].as<std::int64_t>())};
  generate::check_sampling(sampling);
  if (sampling.greedy)
    for (const char* option : {"temperature", "top-k", "top-p", "seed", "samples"})
      if (!values[option].defaulted())
        throw UsageError("--{} has no meaning with --greedy, which draws nothing", option);
  return sampling;
}

/// The tokenizer of the options, of the deck where they say nothing.
std::unique_ptr<tokenizer::Tokenizer> tokenizer_of(const po::variables_map& values,
                                                   const deck::Deck& deck) {
  std::optional<tokenizer::TokenizerSpec> spec = plan::tokenizer_spec(deck);
  if (values.count("tokenizer"))
    spec = tokenizer::TokenizerSpec{.type = values["tokenizer"].as<std::string>()};
  if (!spec)
    throw UsageError(
        "the checkpoint's deck names no data.tokenizer: give --tokenizer and its files");
  const auto replace = [&](std::filesystem::path& path, const char* option) {
    if (values.count(option)) path = values[option].as<std::string>();
  };
  replace(spec->vocab, "vocab");
  replace(spec->merges, "merges");
  replace(spec->model, "model");
  if (values.count("lowercase")) spec->lowercase = values["lowercase"].as<bool>();
  return tokenizer::make_tokenizer(*spec);
}

// ---------------------------------------------------------------------------- prompts

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// The lines of `stream` that are not empty.
std::vector<Prompt> read_lines(std::istream& stream, const std::string& name) {
  std::vector<Prompt> prompts;
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) prompts.push_back({.text = line, .ids = {}});
  }
  if (stream.bad()) throw IoError("cannot read {}", name);
  return prompts;
}

std::vector<Prompt> read_prompts(const po::variables_map& values) {
  if (values.count("prompt")) {
    if (values.count("input")) throw UsageError("give --prompt or --input, not both");
    std::vector<Prompt> prompts;
    for (const std::string& text : values["prompt"].as<std::vector<std::string>>())
      prompts.push_back({.text = text, .ids = {}});
    return prompts;
  }
  std::vector<Prompt> prompts;
  if (!values.count("input")) {
    if (!::isatty(STDIN_FILENO)) prompts = read_lines(std::cin, "standard input");
    if (prompts.empty()) prompts.emplace_back();
    return prompts;
  }
  const auto input = values["input"].as<std::string>();
  if (input == "-") {
    prompts = read_lines(std::cin, "standard input");
  } else {
    std::istringstream lines(read_file(input));
    prompts = read_lines(lines, input);
  }
  if (prompts.empty()) throw DataError("--input {}: there is no prompt in it", input);
  return prompts;
}

/// Fills in the ids, and checks that all prompts fit before anything is generated.
void encode_prompts(std::vector<Prompt>& prompts, const tokenizer::Tokenizer& tokenizer,
                    const generate::Generator& generator) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].ids = tokenizer.encode(prompts[i].text);
    if (prompts[i].ids.empty()) {
      if (!tokenizer.eod())
        throw UsageError(
            "the prompt is empty, and the tokenizer has no end-of-document token to begin a "
            "document with");
      prompts[i].ids = {*tokenizer.eod()};
    }
    try {
      generator.check_prompt(prompts[i].ids);
    } catch (const DataError& error) {
      if (prompts.size() == 1) throw;
      throw DataError("prompt {}: {}", i + 1, error.what());
    }
  }
}

// ---------------------------------------------------------------------------- output

/// Prints to standard output, or gathers everything for one file.
class Output {
 public:
  explicit Output(const po::variables_map& values) {
    if (values.count("output")) path_ = values["output"].as<std::string>();
  }
  void write(const std::string& text) {
    if (!path_.empty()) {
      gathered_ += text;
      return;
    }
    print_out(text);
    std::fflush(stdout);
  }
  void finish() const {
    if (!path_.empty()) write_file_atomically(path_, gathered_);
  }

 private:
  std::string path_;
  std::string gathered_;
};

std::string json_line(const Prompt& prompt, const std::string& text,
                      const generate::Continuation& continuation) {
  const nlohmann::ordered_json object = {{"prompt", prompt.text},
                                         {"text", text},
                                         {"tokens", continuation.ids},
                                         {"finished", continuation.stop == generate::Stop::eod},
                                         {"stop", generate::name_of(continuation.stop)}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void generate_all(const std::vector<Prompt>& prompts, generate::Generator& generator,
                  const tokenizer::Tokenizer& tokenizer, const po::variables_map& values) {
  const auto samples = values["samples"].as<std::int64_t>();
  const bool json = values["json"].as<bool>();
  const bool several = samples > 1 || prompts.size() > 1;
  Output output(values);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const auto continuation = generator.generate(prompts[i].ids, sample);
      const std::string text =
          generate::continuation_text(tokenizer, prompts[i].ids, continuation.ids);
      if (json) {
        output.write(json_line(prompts[i], text, continuation));
        continue;
      }
      if (several) output.write(fmt::format("--- prompt {}, sample {}\n", i + 1, sample + 1));
      output.write(tokenizer::replace_invalid_utf8(prompts[i].text) + text + "\n");
      if (continuation.stop == generate::Stop::context)
        std::fputs("(stopped at the end of the model's context)\n", stderr);
    }
  output.finish();
}

// ---------------------------------------------------------------------------- program

/// Whether a launcher started this process as one of several ranks; `rank` is then its number.
bool is_one_of_several_ranks(int& rank) {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : 0;
  };
  constexpr const char* kVariables[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (const auto& [size, own] : kVariables)
    if (std::getenv(size)) {
      rank = number(own);
      return number(size) > 1;
    }
  return false;
}

ExitCode run(int argc, char** argv) {
  po::options_description options;
  options.add(work_options())
      .add(sampling_options())
      .add(tokenizer_override_options())
      .add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  if (int rank = 0; is_one_of_several_ranks(rank)) {
    // The others leave quietly, so that the message is seen once.
    if (rank != 0) return ExitCode::success;
    throw UsageError("runs as one process: start it without mpirun or srun, or with one rank");
  }
  const po::variables_map values = parse_options(argc, argv, options);
  generate::Request request{.tokens = at_least_one(values, "tokens"),
                            .sampling = sampling_of(values)};
  at_least_one(values, "samples");
  std::vector<Prompt> prompts = read_prompts(values);

  const auto checkpoint = checkpoint::locate(values["checkpoint"].as<std::string>());
  if (!checkpoint.note.empty())
    std::fputs(fmt::format("{}: {}\n", kProgram, checkpoint.note).c_str(), stderr);
  const generate::CheckpointModel model(checkpoint.path);
  const deck::Deck deck = deck::parse(model.header().deck, checkpoint.path.string() + ":deck", {},
                                      {.need_data = false});
  const auto tokenizer = tokenizer_of(values, deck);
  if (tokenizer->vocab_size() > model.vocab())
    throw DataError("the {} tokenizer has {} ids, but the model of '{}' has a vocabulary of {}",
                    tokenizer->name(), tokenizer->vocab_size(), checkpoint.path.string(),
                    model.vocab());
  request.vocab = tokenizer->vocab_size();
  request.eod = tokenizer->eod();

  const auto backend = backend_of(values);
  const model::ModelSpec spec =
      model::make_spec(deck, {.size = model.vocab(), .eod = std::nullopt});
  const auto parameters = model.weights(spec, *backend);
  generate::Decoder decoder(
      *backend, *parameters, spec,
      values["recompute"].as<bool>() ? generate::Cache::none : generate::Cache::keys_and_values);
  generate::Generator generator(decoder, request);
  encode_prompts(prompts, *tokenizer, generator);
  generate_all(prompts, generator, *tokenizer, values);
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
