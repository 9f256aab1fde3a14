// The options of programs that generate text: the checkpoint, its tokenizer, where the model runs.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/file.hpp"
#include "deck/load.hpp"
#include "generate/batch_decoder.hpp"
#include "generate/decoder.hpp"
#include "mpi_app.hpp"
#include "plan/setup.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/startup/startup.hpp"

namespace trireme {

/// Which model, and where it runs.
inline po::options_description model_options() {
  po::options_description options("Model");
  options.add_options()  //
      ("checkpoint", po::value<std::string>()->required()->value_name("PATH"),
       "a checkpoint file, or a run's folder: its newest checkpoint")  //
      ("device", po::value<std::string>()->default_value("auto")->value_name("WHERE"),
       "host, cuda, or auto: cuda if there is a GPU")  //
      ("precision", po::value<std::string>()->default_value("checkpoint")->value_name("TYPE"),
       "of weights and computation: fp32, bf16 or fp16 (these two on GPUs), or that of the "
       "checkpoint")  //
      ("tensor", po::value<int>()->value_name("N"),
       "tensor ranks under mpirun; default: all ranks of a stage")  //
      ("pipeline", po::value<int>()->default_value(1)->value_name("N"),
       "pipeline stages under mpirun");
  return options;
}

inline po::options_description tokenizer_override_options() {
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  po::options_description options("Tokenizer (default: what the checkpoint's deck names)");
  options.add_options()  //
      ("tokenizer", text("TYPE"),
       "gpt2, bpe, sentencepiece, wordpiece, encdec, whitespace or bytes")  //
      ("vocab", text("FILE"),
       "vocabulary: JSON (gpt2, whitespace) or a token per line (wordpiece, encdec)")  //
      ("merges", text("FILE"), "merges (gpt2)")                                        //
      ("model", text("FILE"),
       "model (sentencepiece), tokenizer.json (bpe) or the folder of jieba (encdec)")  //
      ("lowercase", po::value<bool>()->value_name("true|false"),
       "whether the vocabulary is uncased (wordpiece)");
  return options;
}

/// A checkpoint's model, ready to generate.
struct InferenceModel {
  std::filesystem::path path;
  deck::Deck deck;
  std::int64_t iteration = 0;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<device::Backend> backend;
  std::optional<comm::Groups> groups;  ///< with several ranks; gone before the backend
  model::ModelSpec spec;
  std::unique_ptr<model::ParameterStore> parameters;

  comm::Groups* ranks() { return groups ? &*groups : nullptr; }
  bool leads() const { return !groups || groups->world->rank() == 0; }
};

/// The tokenizer that the options name; without them the deck's.
inline std::unique_ptr<tokenizer::Tokenizer> tokenizer_of(const po::variables_map& values,
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

/// Throws UsageError where --output, of a program that has it, names a file that the model comes
/// from: the checkpoint at `path`, a file of its run folder, or one of `deck`'s tokenizer.
inline void keep_model_files(const po::variables_map& values, const std::filesystem::path& path,
                             const deck::Deck& deck) {
  if (!values.count("output")) return;
  const std::filesystem::path run_folder =
      std::filesystem::absolute(path).parent_path().parent_path();
  std::vector<std::string> inputs = with_run_files({path.string(), run_folder.string()});
  if (const auto spec = plan::tokenizer_spec(deck))
    for (const auto& file : {spec->vocab, spec->merges, spec->model})
      if (!file.empty()) inputs.push_back(file.string());
  output_of(values, "output", inputs);
}

/// The type of --precision.
inline DType precision_of(const po::variables_map& values, DType stored) {
  const auto name = values["precision"].as<std::string>();
  if (name == "checkpoint") return stored;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    if (name_of(dtype) == name) return dtype;
  throw UsageError("--precision {}: expected fp32, bf16, fp16 or checkpoint", name);
}

/// Lays `deck` out on `ranks` ranks as --tensor and --pipeline say. Throws UsageError.
inline void lay_out(const po::variables_map& values, int ranks, deck::Deck& deck) {
  const int pipeline = values["pipeline"].as<int>();
  const int tensor =
      values.count("tensor") ? values["tensor"].as<int>() : ranks / std::clamp(pipeline, 1, ranks);
  if (pipeline < 1 || tensor < 1 || tensor * pipeline != ranks)
    throw UsageError("--tensor {} x --pipeline {} is {}, but {} started (mpirun -n {})", tensor,
                     pipeline, counted(tensor * pipeline, "rank"),
                     ranks == 1 ? "1 was" : fmt::format("{} were", ranks),
                     std::max(tensor * pipeline, 1));
  if (deck.model.heads % tensor != 0)
    throw UsageError("--tensor {} does not divide the model's {} heads", tensor, deck.model.heads);
  if (const auto kv = deck.model.kv_heads; kv && *kv % tensor != 0 && tensor % *kv != 0)
    throw UsageError(
        "--tensor {} neither divides the model's {} key and value heads nor is a multiple of them",
        tensor, *kv);
  if (pipeline > deck.model.layers)
    throw UsageError("--pipeline {}: the model has {} layers", pipeline, deck.model.layers);
  deck.parallel = {};
  deck.parallel.tensor = tensor;
  deck.parallel.pipeline = pipeline;
  deck.parallel.data = 1;
  deck.parallel.interleave = 1;
  // The first stages have a layer more where the stages do not divide the layers.
  deck.parallel.partition.emplace();
  for (int stage = 0; stage < pipeline; ++stage)
    deck.parallel.partition->push_back(deck.model.layers / pipeline +
                                       (stage < deck.model.layers % pipeline));
  deck.batch.micro = deck.batch.global = 1;
  deck.batch.rampup = {};
  deck.recompute = {};
}

/// Loads the model on this rank. `world` is null for one process without MPI. Collective. Throws
/// UsageError, IoError and DataError.
inline InferenceModel load_model(const po::variables_map& values, const char* program,
                                 std::unique_ptr<comm::MpiCommunicator> world) {
  const auto where = values["device"].as<std::string>();
  if (where != "auto" && where != "host" && where != "cuda")
    throw UsageError("--device {}: expected auto, host or cuda", where);
  InferenceModel model;
  const auto found = checkpoint::locate(values["checkpoint"].as<std::string>());
  if (!found.note.empty() && (!world || world->rank() == 0))
    std::fputs(fmt::format("{}: {}\n", program, found.note).c_str(), stderr);
  model.path = found.path;
  const generate::CheckpointModel checkpoint(found.path);
  model.iteration = checkpoint.header().get<std::int64_t>("iteration");
  model.deck = deck::parse(checkpoint.header().deck, found.path.string() + ":deck", {},
                           {.need_data = false});
  if (!model::family_of(model.deck).causal)
    throw DataError("'{}' holds a {} model: only gpt and llama models generate text",
                    found.path.string(), name_of(model.deck.model.family));
  keep_model_files(values, model.path, model.deck);
  model.tokenizer = tokenizer_of(values, model.deck);
  if (model.tokenizer->vocab_size() > checkpoint.vocab())
    throw DataError("the {} tokenizer has {} ids, but the model of '{}' has a vocabulary of {}",
                    model.tokenizer->name(), model.tokenizer->vocab_size(), found.path.string(),
                    checkpoint.vocab());
  const std::string problem =
      train::tokenizer_problem(checkpoint.header(), model.tokenizer->identity());
  if (!problem.empty() && (!world || world->rank() == 0))
    std::fputs(fmt::format("{}: warning: {}\n", program, problem).c_str(), stderr);

  const bool gpu = where != "host" && !device::visible_gpus().empty();
  if (where == "cuda" && !gpu)
    throw CodedError<ExitCode::failure>("--device cuda: {}", device::why_no_gpu());
  const DType dtype = precision_of(values, checkpoint.dtype());
  if (!gpu && size_of(dtype) == 2)
    throw UsageError("--precision {} needs a GPU: the host computes in fp32", name_of(dtype));
  lay_out(values, world ? world->size() : 1, model.deck);
  model.deck.run.device = gpu ? deck::Device::cuda : deck::Device::host;
  grid::Layout layout{.partition = {static_cast<int>(model.deck.model.layers)}};
  grid::Coordinates place;
  // Decoding runs GEMMs of many shapes, each only a few times: timing them does not pay.
  constexpr auto kChoice = device::GemmChoice::heuristic;
  if (world) {
    train::Devices devices = train::make_devices(model.deck, std::move(world), kChoice);
    model.backend = std::move(devices.backend);
    model.groups.emplace(std::move(devices.groups));
    layout = model.groups->layout;
    place = model.groups->place;
  } else {
    model.backend = gpu ? device::make_cuda_backend(0, "", kChoice)
                        : device::make_host_backend(device::threads_for_rank(1));
  }
  model.spec = model::make_spec(model.deck, {.size = checkpoint.vocab(), .eod = std::nullopt});
  model.parameters = checkpoint.weights(model.spec, *model.backend, layout, place, dtype);
  return model;
}

/// The limits of `sequences` sequences with the cache of --cache.
inline generate::BatchLimits limits_of(const po::variables_map& values, const InferenceModel& model,
                                       std::int64_t sequences) {
  // Passes over many tokens fill a GPU; on the host they are no faster per token.
  constexpr std::int64_t kGpuTokens = 8192, kHostTokens = 512;
  return {.sequences = sequences,
          .pass_tokens = model.backend->is_host_memory() ? kHostTokens : kGpuTokens,
          .cache_positions = values.count("cache") ? values["cache"].as<std::int64_t>() : 0};
}

/// Ranks that the launcher started, without starting MPI.
inline bool is_one_of_several_ranks() { return comm::launched_ranks() > 1; }

}  // namespace trireme
