#include "train/startup/startup.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "comm/communicator.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck/load.hpp"
#include "device/backend.hpp"
#include "kernels/host/compute.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "train/startup/launch.hpp"

namespace trireme::train {

comm::WatchedWork preparation(const comm::MpiCommunicator& world, const char* what) {
  return world.work(what, /*minimum=*/600.0, comm::ProgressBy::cpu_time);
}

std::string broadcast_text(comm::MpiCommunicator& world, std::string text) {
  std::uint64_t size = text.size();
  world.broadcast(&size, sizeof size, 0);
  text.resize(size);
  world.broadcast(text.data(), size, 0);
  return text;
}

std::string on_rank_zero(comm::MpiCommunicator& world, const std::function<std::string()>& work) {
  std::int32_t code = 0;
  std::string text;
  if (world.rank() == 0) {
    const comm::WatchedWork watched = preparation(world, "work of rank 0");
    try {
      text = work();
    } catch (const Error& error) {
      code = static_cast<std::int32_t>(error.code());
      text = error.what();
    } catch (const std::exception& error) {
      code = static_cast<std::int32_t>(ExitCode::failure);
      text = error.what();
    }
  }
  world.broadcast(&code, sizeof code, 0);
  text = broadcast_text(world, std::move(text));
  if (code != 0) throw CollectiveError(static_cast<ExitCode>(code), text);
  return text;
}

void throw_collectively(const std::function<void()>& work) {
  try {
    work();
  } catch (const IoError& error) {
    throw CollectiveError(error.code(), error.what());
  } catch (const DataError& error) {
    throw CollectiveError(error.code(), error.what());
  } catch (const DeckError& error) {
    throw CollectiveError(error.code(), error.what());
  } catch (const UsageError& error) {
    throw CollectiveError(error.code(), error.what());
  }
}

std::string first_problem(comm::MpiCommunicator& world, const std::string& problem) {
  if (world.all_reduce(problem.empty() ? 0.0 : 1.0, comm::Reduce::max) == 0) return "";
  const std::vector<std::string> all = world.all_gather_text(problem);
  const std::vector<std::string> hosts = world.all_gather_text(host_name());
  const auto first = std::find_if(all.begin(), all.end(), [](auto& text) { return !text.empty(); });
  const auto others = std::count_if(first + 1, all.end(), [](auto& text) { return !text.empty(); });
  std::string message = *first;
  if (all.size() > 1)
    message = fmt::format("rank {0} on {1}: {2}", first - all.begin(), hosts[first - all.begin()],
                          *first);
  if (others > 0) message += fmt::format(" (and {} more rank{})", others, others == 1 ? "" : "s");
  return message;
}

void refuse(comm::MpiCommunicator& world, ExitCode code, const std::string& problem) {
  const std::string message = first_problem(world, problem);
  if (!message.empty()) throw CollectiveError(code, message);
}

namespace {

namespace fs = std::filesystem;

/// Network file systems may show a new file a little later to other hosts.
constexpr std::chrono::seconds kPatienceForFiles{5};

ProgramInfo program_info() {
  return {.host = host_name(), .path = program_path(), .build = build_id()};
}

DeckInfo deck_info(const std::string& path, const std::vector<std::string>& overrides) {
  DeckInfo info{.path = path, .overrides = fmt::format("{}", fmt::join(overrides, "\n"))};
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return info;  // a pipe can be read but once
  try {
    info.text = read_file(path);
  } catch (const IoError&) {
  }
  return info;
}

GpuInfo gpu_info(const comm::MpiCommunicator& world) {
  const auto node = world.split_by_node();
  GpuInfo info{.local_rank = node->rank(), .local_ranks = node->size()};
  for (const device::Gpu& gpu : device::visible_gpus()) info.names.push_back(gpu.name);
  if (info.names.empty()) info.why_none = device::why_no_gpu();
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) info.visible = visible;
  return info;
}

constexpr const char* kTokenPrefix = ".seen-";

/// Removes what starts that were killed have left.
void remove_tokens(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kTokenPrefix))
      fs::remove(entry.path(), ignored);
}

/// Whether `path` has the content `token`, now or soon; otherwise why not.
std::string wait_for_token(const fs::path& path, const std::string& token) {
  const auto deadline = std::chrono::steady_clock::now() + kPatienceForFiles;
  while (true) {
    std::string why = "it has another content";
    try {
      if (read_file(path) == token) return "";
    } catch (const IoError& error) {
      why = error.what();
    }
    if (std::chrono::steady_clock::now() > deadline) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

void check_same_build(comm::MpiCommunicator& world) {
  const ProgramInfo mine = program_info();
  const ProgramInfo first{.host = broadcast_text(world, mine.host),
                          .path = broadcast_text(world, mine.path),
                          .build = broadcast_text(world, mine.build)};
  refuse(world, ExitCode::failure, build_problem(first, mine));
}

void check_same_start(comm::MpiCommunicator& world, const StartInfo& info) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<double> all(2 * size);  // whether it runs, exit code
  all[2 * world.rank()] = info.runs;
  all[2 * world.rank() + 1] = info.exit_code;
  world.all_gather(all.data(), 2, DType::f64);
  const std::vector<std::string> errors = world.all_gather_text(info.error);
  const std::vector<std::string> hosts = world.all_gather_text(host_name());
  // The first rank that runs, that leaves, and that has an error; `size` for none.
  std::size_t runs = size, leaves = size, fails = size;
  for (std::size_t rank = size; rank-- > 0;) {
    (all[2 * rank] > 0.0 ? runs : leaves) = rank;
    if (all[2 * rank + 1] > 0.0) fails = rank;
  }
  if (leaves == size || (runs == size && (fails == size || fails == 0))) return;
  if (fails < size)
    throw CollectiveError(static_cast<ExitCode>(static_cast<int>(all[2 * fails + 1])),
                          fmt::format("rank {} on {}: {}", fails, hosts[fails], errors[fails]));
  throw CollectiveError(
      ExitCode::usage,
      fmt::format("rank {} on {} only answers a question, such as --check, and rank {} on {} does "
                  "not: start all ranks with the same options",
                  leaves, hosts[leaves], runs, hosts[runs]));
}

void check_same_deck(comm::MpiCommunicator& world, const std::string& path,
                     const std::vector<std::string>& overrides) {
  const DeckInfo mine = deck_info(path, overrides);
  DeckInfo first{.path = broadcast_text(world, mine.path)};
  first.overrides = broadcast_text(world, mine.overrides);
  const std::string text = broadcast_text(world, mine.text.value_or(""));
  if (broadcast_text(world, mine.text ? "read" : "not read") == "read") first.text = text;
  refuse(world, ExitCode::deck, deck_problem(first, mine));
}

void check_gpus(comm::MpiCommunicator& world, const deck::Deck& deck) {
  const GpuInfo mine = gpu_info(world);
  refuse(world, ExitCode::failure, gpu_problem(mine));
  if (!deck.run.mixed_gpus) {
    const std::string first = broadcast_text(world, mine.taken());
    refuse(world, ExitCode::failure, gpu_kind_problem(first, mine.taken()));
  }
  if (deck.precision.gemm == deck::GemmPrecision::fp8)
    refuse(world, ExitCode::deck,
           fp8_problem(mine.taken(), device::visible_gpus()[mine.local_rank].capability,
                       deck.precision.fp8.recipe.value_or(deck::Fp8Recipe::tensor)));
  const bool one_node = mine.local_ranks == world.size();
  refuse(world, ExitCode::failure,
         one_node ? ""
                  : network_problem(read_network_info("/sys/class/infiniband", "/dev/infiniband")));
}

void check_shared_folder(comm::MpiCommunicator& world, const std::string& folder) {
  if (world.size() == 1) return;
  // A name that no host has asked for before: none remembers that there is no such file.
  const std::string token = on_rank_zero(world, [&] {
    remove_tokens(folder);
    const std::string name = fmt::format("{}{:08x}", kTokenPrefix, std::random_device{}());
    write_file_atomically(fs::path(folder) / name, name);
    return name;
  });
  const fs::path path = fs::absolute(folder) / token;
  const std::string why = wait_for_token(path, token);
  // All have looked when all have answered.
  world.barrier();
  std::error_code ignored;
  if (world.rank() == 0) fs::remove(path, ignored);
  refuse(world, ExitCode::io,
         why.empty()
             ? ""
             : fmt::format("it does not see the run folder '{}' that rank 0 writes: {}; put "
                           "run.output on a file system that all hosts share, under one path (in "
                           "a container: --container-mounts)",
                           fs::absolute(folder).string(), why));
}

PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve,
                          bool need_data) {
  check_same_deck(world, path, overrides);
  const std::string text = on_rank_zero(world, [&] {
    deck::Deck deck =
        deck::load(path, overrides, {.need_data = need_data, .automatic = automatic_device()});
    resolve(deck, world.size());
    const plan::Vocabulary vocabulary = plan::vocabulary(deck);
    nlohmann::json message{{"deck", deck::print_deck(deck)}, {"vocab", vocabulary.size}};
    if (vocabulary.eod) message["eod"] = *vocabulary.eod;
    if (const auto& tokenizer = vocabulary.tokenizer)
      message["tokenizer"] = {{"type", tokenizer->type},
                              {"hash", tokenizer->hash},
                              {"vocab", tokenizer->vocab_size},
                              {"library", tokenizer->library}};
    if (const auto& bert = vocabulary.bert) {
      std::string continues;
      for (const bool word : bert->continues_word) continues += word ? '1' : '0';
      message["bert"] = {{"cls", bert->cls},
                         {"sep", bert->sep},
                         {"mask", bert->mask},
                         {"pad", bert->pad},
                         {"continues", continues}};
    }
    return message.dump();
  });
  const auto message = nlohmann::json::parse(text);
  PreparedDeck prepared{.deck = deck::parse(message["deck"].get<std::string>(), path,
                                            /*overrides=*/{}, {.need_data = need_data}),
                        .vocabulary = {.size = message["vocab"].get<std::int64_t>()}};
  if (message.contains("eod")) prepared.vocabulary.eod = message["eod"].get<std::int32_t>();
  if (message.contains("tokenizer")) {
    const auto& tokenizer = message["tokenizer"];
    prepared.vocabulary.tokenizer = {.type = tokenizer["type"].get<std::string>(),
                                     .hash = tokenizer["hash"].get<std::uint64_t>(),
                                     .vocab_size = tokenizer["vocab"].get<std::int32_t>(),
                                     .library = tokenizer["library"].get<std::string>()};
  }
  if (message.contains("bert")) {
    const auto& bert = message["bert"];
    data::BertVocabulary words{.cls = bert["cls"].get<std::int32_t>(),
                               .sep = bert["sep"].get<std::int32_t>(),
                               .mask = bert["mask"].get<std::int32_t>(),
                               .pad = bert["pad"].get<std::int32_t>()};
    for (const char c : bert["continues"].get<std::string>())
      words.continues_word.push_back(c == '1');
    prepared.vocabulary.bert = std::make_shared<const data::BertVocabulary>(std::move(words));
  }
  return prepared;
}

// ---- what a run computes on

namespace {

/// The tuning cache, which keeps the timed choices of GEMM algorithms between runs, in the user's
/// cache folder; "" when there is none.
std::string gemm_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder = cache  ? std::filesystem::path(cache)
                                 : home ? std::filesystem::path(home) / ".cache"
                                        : std::filesystem::path();
  if (folder.empty()) return "";
  folder /= "trireme";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : (folder / "gemm_tuning.txt").string();
}

Devices make_host(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world) {
  const int threads = device::threads_for_rank(comm::ranks_sharing_cores(*world));
  return {.backend = device::make_host_backend(threads),
          .groups = comm::make_groups(std::move(world), plan::layout(deck)),
          .description =
              fmt::format("{} thread{} a rank, host backend, {}", threads, threads == 1 ? "" : "s",
                          name_of(plan::precision(deck).activations))};
}

Devices make_cuda(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world,
                  device::GemmChoice choice) {
  check_gpus(*world, deck);
  const int index = comm::node_local_rank(*world);
  const auto gpus = device::visible_gpus();
  // The host draws the initial weights: not each rank with all cores.
  kernels::host::use_threads(device::threads_for_rank(comm::ranks_sharing_cores(*world)));
  const bool timed = choice == device::GemmChoice::timed;
  auto backend = device::make_cuda_backend(index, timed ? gemm_cache() : "", choice);
  const grid::Layout layout = plan::layout(deck);
  const auto connect = [&](comm::Axis axis, std::unique_ptr<comm::MpiCommunicator> ranks) {
    comm::NcclOptions options{.timeout_seconds = deck::in_seconds(deck.comm.timeout),
                              .debug = deck.comm.nccl_debug.value_or("")};
    if (axis == comm::Axis::pipeline) {
      options.routes = comm::pipeline_routes(ranks->size(), layout.chunks);
      options.message_bytes = plan::message_bytes(deck);
    }
    options.through_peers =
        axis == comm::Axis::tensor || (axis == comm::Axis::data && deck.parallel.zero > 0);
    return comm::make_device_communicator(*ranks, ranks->name(), backend->stream(), options);
  };
  comm::Groups groups = comm::make_groups(std::move(world), layout, connect);
  return {.backend = std::move(backend),
          .groups = std::move(groups),
          .description = fmt::format("cuda backend on {}, {}", gpus[index].name,
                                     name_of(plan::precision(deck).activations))};
}

/// Why this rank's host has no room for what its ranks need; "" when it has.
std::string host_memory_problem(const deck::Deck& deck, std::int64_t vocab,
                                const plan::RunPlan& plan, const plan::MemoryPlan& mine,
                                comm::MpiCommunicator& world) {
  const std::vector<std::string> hosts = world.all_gather_text(host_name());
  std::vector<double> needs(world.size());
  needs[world.rank()] = static_cast<double>(mine.total() - mine.libraries);
  world.all_gather(needs.data(), 1, DType::f64);
  const std::int64_t available = available_memory();
  world.barrier();  // before any rank allocates
  double together = 0;
  std::size_t ranks = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts[rank] != hosts[world.rank()]) continue;
    together += needs[rank];
    ++ranks;
  }
  if (available == 0) return "";
  return plan::host_memory_problem(deck, vocab, plan, ranks, static_cast<std::size_t>(together),
                                   static_cast<std::size_t>(available));
}

}  // namespace

deck::Device automatic_device() {
  return device::visible_gpus().empty() ? deck::Device::host : deck::Device::cuda;
}

Devices make_devices(const deck::Deck& deck, std::unique_ptr<comm::MpiCommunicator> world,
                     device::GemmChoice choice) {
  world->set_timeout(deck::in_seconds(deck.comm.timeout));
  return deck.run.device == deck::Device::cuda ? make_cuda(deck, std::move(world), choice)
                                               : make_host(deck, std::move(world));
}

std::optional<plan::AvailableMemory> memory_here(const deck::Deck& deck) {
  if (deck.run.device == deck::Device::host) {
    const std::int64_t available = available_memory();
    if (available == 0) return std::nullopt;
    return plan::AvailableMemory{static_cast<std::size_t>(available), "that this host has free"};
  }
  std::optional<plan::AvailableMemory> smallest;
  for (const device::Gpu& gpu : device::visible_gpus())
    if (!smallest || gpu.memory_bytes < smallest->bytes)
      smallest = {gpu.memory_bytes, fmt::format("that this machine's {} has", gpu.name)};
  return smallest;
}

void require_memory(const deck::Deck& deck, std::int64_t vocab, const device::Backend& backend,
                    const comm::Groups& groups) {
  const double on_node = groups.world->split_by_node()->size();
  const auto node_ranks = static_cast<int>(groups.world->all_reduce(on_node, comm::Reduce::min));
  const plan::RunPlan plan = plan::plan_run(deck, vocab, node_ranks);
  const plan::MemoryPlan& mine = plan.stages[groups.place.pipeline].memory;
  const device::Backend::Memory memory = backend.memory();
  refuse(*groups.world, ExitCode::failure,
         memory.total > 0
             ? plan::gpu_memory_problem(deck, vocab, mine, memory.total - memory.used, memory.total)
             : host_memory_problem(deck, vocab, plan, mine, *groups.world));
}

}  // namespace trireme::train
