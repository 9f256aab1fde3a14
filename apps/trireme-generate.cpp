// trireme-generate: continues prompts with the model of a checkpoint.
#include <unistd.h>

#include <memory>

#include "generate/decoder.hpp"
#include "generate/generator.hpp"
#include "generate/texts.hpp"
#include "model_options.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-generate";
constexpr const char* kUsage =
    "Usage: trireme-generate --checkpoint PATH [--prompt TEXT... | --input FILE] [options]\n"
    "Continues each prompt with the model of a checkpoint, on one process or under mpirun on "
    "tensor\n"
    "and pipeline ranks. Without --prompt and --input the prompts are the lines of standard "
    "input,\n"
    "on a terminal interactively: Ctrl-C stops a text, Ctrl-D ends. An empty prompt, or\n"
    "--unconditional, starts a new document. OMP_NUM_THREADS sets the number of threads.\n\n";

/// Generates with the model on the first rank.
class Run {
 public:
  Run(const po::variables_map& values, InferenceModel& model, generate::BatchDecoder* decoder)
      : values_(values), model_(model), decoder_(decoder) {
    request_ = {.tokens = values["tokens"].as<std::int64_t>(),
                .sampling = sampling_of(values),
                .vocab = model.tokenizer->vocab_size(),
                .eod = model.tokenizer->eod()};
    if (values.count("logprobs")) request_.alternatives = values["logprobs"].as<int>();
    if (values.count("stop")) stops_ = values["stop"].as<std::vector<std::string>>();
  }

  void prompts(std::vector<Prompt> prompts) {
    const std::int64_t capacity = model_.spec.embedding.positions;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      prompts[i].ids = encode(*model_.tokenizer, prompts[i].text);
      if (std::ssize(prompts[i].ids) >= capacity)
        throw DataError(
            "{}the prompt has {} tokens, but the model's context holds {} (model.positions), of "
            "which one at least is for the continuation",
            prompts.size() > 1 ? fmt::format("prompt {}: ", i + 1) : "", prompts[i].ids.size(),
            capacity);
    }
    Printer printer(values_, prompts, *model_.tokenizer);
    if (values_.count("beams"))
      beams(prompts, printer);
    else if (!decoder_)
      without_cache(prompts, printer);
    else
      batch(prompts, printer);
    printer.finish();
  }

  void interactive() { run_dialogue(*decoder_, *model_.tokenizer, request_, stops_); }

 private:
  void batch(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = values_["samples"].as<std::int64_t>();
    generate::BatchGenerator generator(*decoder_);
    std::vector<std::unique_ptr<generate::TextStream>> streams;
    if (printer.streams()) printer.begin();
    for (const Prompt& prompt : prompts)
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        const std::size_t number = streams.size();
        streams.push_back(
            std::make_unique<generate::TextStream>(*model_.tokenizer, prompt.ids, stops_));
        generate::TextStream* stream = streams.back().get();
        generator.submit({.prompt = prompt.ids,
                          .request = request_,
                          .sample = static_cast<std::uint64_t>(sample),
                          .on_token =
                              [&printer, stream](const generate::ChosenToken& token) {
                                const std::string piece = stream->push(token.score.id);
                                if (printer.streams()) printer.piece(piece);
                                return !stream->stopped();
                              },
                          .on_end =
                              [&printer, stream, number](generate::Continuation continuation) {
                                const std::string rest = stream->finish();
                                if (printer.streams()) printer.piece(rest);
                                printer.add(number, {stream->text(), std::move(continuation)});
                              }});
      }
    while (generator.step()) {
    }
  }

  void beams(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = static_cast<std::size_t>(values_["samples"].as<std::int64_t>());
    const generate::BeamOptions options{.beams = values_["beams"].as<int>(),
                                        .length_penalty = values_["length-penalty"].as<double>(),
                                        .tokens = request_.tokens,
                                        .vocab = request_.vocab,
                                        .eod = request_.eod};
    for (const Prompt& prompt : prompts) check_beam_search(*decoder_, prompt.ids, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      auto found = beam_search(*decoder_, prompts[i].ids, options);
      for (std::size_t k = 0; k < samples; ++k) {
        if (k < found.size())
          add(printer, i * samples + k, prompts[i],
              {.ids = std::move(found[k].ids), .stop = found[k].stop}, found[k].score);
        else
          printer.pass_over(i * samples + k);
      }
    }
  }

  void without_cache(const std::vector<Prompt>& prompts, Printer& printer) {
    const auto samples = static_cast<std::size_t>(values_["samples"].as<std::int64_t>());
    generate::Decoder decoder(*model_.backend, *model_.parameters, model_.spec);
    generate::Generator generator(decoder, request_);
    for (std::size_t i = 0; i < prompts.size(); ++i)
      for (std::size_t k = 0; k < samples; ++k)
        add(printer, i * samples + k, prompts[i], generator.generate(prompts[i].ids, k));
  }

  void add(Printer& printer, std::size_t number, const Prompt& prompt,
           generate::Continuation continuation, std::optional<double> score = std::nullopt) {
    generate::TextStream stream(*model_.tokenizer, prompt.ids, stops_);
    for (std::size_t i = 0; i < continuation.ids.size(); ++i) {
      stream.push(continuation.ids[i]);
      if (!stream.stopped()) continue;
      continuation.ids.resize(i + 1);
      if (!continuation.tokens.empty()) continuation.tokens.resize(i + 1);
      continuation.stop = generate::Stop::text;
    }
    printer.add(number, {stream.text(), std::move(continuation), score});
  }

  const po::variables_map& values_;
  InferenceModel& model_;
  generate::BatchDecoder* decoder_;  ///< null with --recompute
  generate::Request request_;
  std::vector<std::string> stops_;
};

ExitCode generate_on(const po::variables_map& values,
                     std::unique_ptr<comm::MpiCommunicator> world) {
  const bool several = world != nullptr;
  const bool recompute = values["recompute"].as<bool>();
  if (recompute && several) throw UsageError("--recompute runs as one process, without mpirun");
  InferenceModel model = load_model(values, kProgram, std::move(world));
  std::optional<generate::BatchDecoder> decoder;
  if (!recompute) {
    const std::int64_t sequences = values.count("beams") ? 2 * values["beams"].as<int>()
                                   : values["interactive"].as<bool>()
                                       ? 1
                                       : values["batch"].as<std::int64_t>();
    decoder.emplace(*model.backend, *model.parameters, model.spec,
                    limits_of(values, model, sequences), model.ranks());
  }
  if (!model.leads()) {
    decoder->follow();
    return ExitCode::success;
  }
  if (values.count("cache"))
    std::fputs(fmt::format("{}: KV cache: {}\n", kProgram, decoder->cache_plan().text()).c_str(),
               stderr);
  if (decoder && decoder->capacity() < model.spec.embedding.positions)
    std::fputs(fmt::format("{}: {} tokens of a text; --recompute has no such limit\n", kProgram,
                           decoder->capacity_text())
                   .c_str(),
               stderr);
  Run run(values, model, decoder ? &*decoder : nullptr);
  if (values["interactive"].as<bool>() ||
      (!several && !recompute && !values.count("beams") && !values.count("prompt") &&
       !values.count("input") && !values["unconditional"].as<bool>() &&
       !values["json"].as<bool>() && !values.count("output") && ::isatty(STDIN_FILENO)))
    run.interactive();
  else
    run.prompts(read_prompts(values));
  if (decoder) decoder->stop();
  return ExitCode::success;
}

ExitCode run(int argc, char** argv) {
  po::options_description options;
  options.add(model_options())
      .add(work_options())
      .add(sampling_options())
      .add(tokenizer_override_options())
      .add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  sampling_of(values);
  check_options(values);
  if (!is_one_of_several_ranks()) return generate_on(values, nullptr);
  if (values["interactive"].as<bool>())
    throw UsageError("--interactive runs as one process: start it without mpirun or srun");
  return run_on_ranks(kProgram, [&](auto world) { return generate_on(values, std::move(world)); });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (trireme::is_one_of_several_ranks())
    return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
