// --profile: a rank that starts itself again under Nsight Systems or Nsight Compute.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/system/process.hpp"
#include "deck/value.hpp"
#include "deck_options.hpp"

namespace trireme {

/// The options of a program that profiles itself.
inline po::options_description profiler_options() {
  po::options_description options("Profiler");
  options.add_options()  //
      ("profile", po::value<std::string>()->value_name("nsys|ncu"),
       "run each rank under Nsight Systems or Nsight Compute; reports go to RUN/profile")  //
      ("iterations", po::value<std::string>()->value_name("A-B"),
       "of --profile: the iterations that are recorded (nsys: all, ncu: 10-10)");
  return options;
}

/// The iterations that --profile records; none without it. Throws UsageError.
inline std::optional<deck::IterationRange> profiled_iterations(const po::variables_map& values) {
  if (!values.count("profile")) {
    if (values.count("iterations")) throw UsageError("--iterations belongs to --profile nsys|ncu");
    return std::nullopt;
  }
  const auto tool = values["profile"].as<std::string>();
  if (tool != "nsys" && tool != "ncu") throw UsageError("--profile {}: expected nsys or ncu", tool);
  if (!values.count("iterations"))
    return tool == "ncu" ? std::optional(deck::IterationRange{10, 10}) : std::nullopt;
  deck::Item item;
  item.kind = deck::Item::Kind::scalar;
  item.text = values["iterations"].as<std::string>();
  try {
    const auto ranges = deck::Codec<std::vector<deck::IterationRange>>::read(item, {});
    if (ranges.size() == 1) return ranges.front();
  } catch (const deck::BadValue&) {
  }
  throw UsageError("--iterations {}: expected the first and the last one, such as 10-12",
                   item.text);
}

/// The words in front of the program that record `iterations`: those in the NVTX range "profile".
inline std::vector<std::string> profiler_words(
    const std::string& tool, const std::string& folder,
    const std::optional<deck::IterationRange>& iterations) {
  const std::string file = fmt::format("{}/profile/{}-%h-%p", folder, tool);
  if (tool == "ncu") return {"ncu", "--nvtx", "--nvtx-include", "profile/", "--export=" + file};
  std::vector<std::string> words = {"nsys", "profile", "--trace=cuda,nvtx,mpi"};
  if (iterations)
    for (const char* word :
         {"--capture-range=nvtx", "--nvtx-capture=profile", "--capture-range-end=stop"})
      words.push_back(word);
  words.push_back("--output=" + file);
  return words;
}

/// With --profile replaces this process by the profiler, which starts the program again; returns in
/// that one, and without --profile. Throws UsageError, DeckError, IoError.
inline void start_profiler(int argc, char** argv, const DeckArguments& arguments) {
  constexpr const char* kUnderProfiler = "TRIREME_UNDER_PROFILER";
  const auto iterations = profiled_iterations(arguments.values);
  if (!arguments.values.count("profile") || std::getenv(kUnderProfiler)) return;
  const deck::Deck deck =
      deck::load(arguments.path, arguments.overrides, {.automatic = train::automatic_device()});
  if (iterations && deck.run.device == deck::Device::host)
    throw UsageError("--iterations: NVTX ranges are those of GPUs, but run.device is host");
  std::filesystem::create_directories(std::filesystem::path(deck.run.output) / "profile");
  const auto tool = arguments.values["profile"].as<std::string>();
  std::vector<std::string> words = profiler_words(tool, deck.run.output, iterations);
  words.push_back(program_path());
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::setenv(kUnderProfiler, "1", 1);
  ::setenv("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0", 1);  // the range's name is not registered
  ::execvp(pointers[0], pointers.data());
  throw IoError("--profile: '{}' cannot be started: install Nsight, or load its module", tool);
}

}  // namespace trireme
