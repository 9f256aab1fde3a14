#include <algorithm>
#include <filesystem>
#include <sstream>

#include "bench/commands.hpp"
#include "bench/passes.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck_options.hpp"
#include "mpi_app.hpp"
#include "optim/optimizer.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kProfileProgram = "trireme-bench profile";
constexpr const char* kProfileUsage =
    "Usage: trireme-bench profile DECK [KEY=VALUE ...] -o FILE.yaml [options]\n"
    "       mpirun -n RANKS trireme-bench profile DECK [KEY=VALUE ...] -o FILE.yaml [options]\n"
    "Times the passes of the deck's embedding, blocks and head, the optimizer, copies and, on\n"
    "several ranks of a node, collectives. trireme-plan reads FILE: a kind of GPU names it as\n"
    "'measured'. What FILE has of other models is kept.\n\n";

struct ProfileSettings {
  std::vector<std::int64_t> micro;   ///< micro-batches
  std::vector<std::int64_t> tensor;  ///< tensor sizes
  int repeats = 5;
  int layers = 4;  ///< blocks of the timed stage
  double seconds = 120;
  std::filesystem::path file;
};

/// Everything that the ranks of a node measure together. Every method is collective.
class Profiler {
 public:
  Profiler(const deck::Deck& deck, std::int64_t vocab, const ProfileSettings& settings)
      : deck_(deck), vocab_(vocab), settings_(settings) {}

  plan::MeasuredGpu run(std::unique_ptr<comm::MpiCommunicator> world) {
    const int ranks = world->size();
    if (comm::node_local_size(*world) != ranks)
      throw train::CollectiveError(ExitCode::failure,
                                   "a profile is measured on the ranks of one node");
    deck::Deck deck = passes_deck(deck_, 1, 1, false, settings_.layers);
    deck.parallel.data = deck.batch.global = ranks;
    {
      train::Devices devices = train::make_devices(deck, std::move(world));
      const std::string name = devices.backend->gpu_name();
      result_.name = name.empty() ? "host" : name;
      reserve_workspace(*devices.backend);
      measure_backend(*devices.backend, *devices.groups.world);
      measure_optimizer(*devices.backend, *devices.groups.world);
      if (ranks > 1) measure_collectives(*devices.backend, devices.groups);
      measure_passes(*devices.backend, *devices.groups.world, nullptr);
    }
    if (ranks > 1) measure_messages(ranks);
    if (ranks > 1 && std::ranges::find(settings_.tensor, ranks) != settings_.tensor.end()) {
      deck = passes_deck(deck_, ranks, settings_.micro.back(), false, settings_.layers);
      train::Devices devices = train::make_devices(deck, comm::MpiCommunicator::world());
      reserve_workspace(*devices.backend);
      measure_passes(*devices.backend, *devices.groups.world, devices.groups.tensor.get());
    }
    return result_;
  }

 private:
  /// Of the largest passes, before the first operation: captured graphs keep its address.
  void reserve_workspace(device::Backend& backend) const {
    for (const std::int64_t tensor : settings_.tensor) {
      const deck::Deck deck =
          passes_deck(deck_, tensor, settings_.micro.back(), false, settings_.layers);
      backend.reserve_workspace(
          model::kernel_workspace_bytes(plan::stage_config(deck, {.size = vocab_})));
    }
  }

  /// The slowest rank's value.
  static double slowest(comm::MpiCommunicator& world, double value) {
    return world.all_reduce(value, comm::Reduce::max);
  }

  void measure_backend(device::Backend& backend, comm::MpiCommunicator& world) {
    const bool cuda = deck_.run.device == deck::Device::cuda;
    const std::size_t bytes = (cuda ? std::size_t{256} : std::size_t{32}) << 20;
    const device::Buffer a = backend.allocate(bytes, "copies"),
                         b = backend.allocate(bytes, "copies");
    const device::Buffer host = backend.allocate_on_host(bytes, "copies");
    const Tensor one{.data = a.get(), .dtype = DType::f32, .shape = {1}};
    constexpr int kLaunches = 200;
    const auto times = time_passes(backend, settings_.repeats,
                                   {[&] {
                                      for (int i = 0; i < kLaunches; ++i) backend.zero(one);
                                    },
                                    [&] { backend.copy(b.get(), a.get(), bytes); },
                                    [&] {
                                      backend.start_copy(host.get(), a.get(), bytes);
                                      backend.finish_copies();
                                    },
                                    [&] {
                                      backend.start_copy(a.get(), host.get(), bytes);
                                      backend.finish_copies();
                                    }});
    const double size = static_cast<double>(bytes);
    result_.launch = slowest(world, times[0] / kLaunches);
    result_.copy = 2 * size / slowest(world, times[1]);
    result_.to_host = size / slowest(world, times[2]);
    result_.from_host = size / slowest(world, times[3]);
  }

  /// Of one block and of several: what a parameter takes, and what a step takes without any.
  void measure_optimizer(device::Backend& backend, comm::MpiCommunicator& world) {
    std::vector<std::pair<double, double>> points;
    for (const int layers : {1, 4}) {
      const deck::Deck deck = passes_deck(deck_, 1, 1, false, layers);
      Stages stages(deck, vocab_, backend, 0);
      model::ParameterStore& parameters = stages.parameters(1);
      comm::SerialCommunicator alone;
      optim::Optimizer optimizer(
          backend, parameters,
          {.world = alone, .data = alone, .embedding = nullptr, .tensor = &alone},
          plan::optimizer_config(deck));
      optimizer.initialize(1);
      const auto step = [&] {
        parameters.zero_gradients();
        optimizer.reduce_gradients();
        optimizer.update({.gradient_norm = optimizer.gradient_norm()});
      };
      points.emplace_back(static_cast<double>(parameters.placement().size),
                          slowest(world, time_passes(backend, settings_.repeats, {step})[0]));
    }
    const auto& [few, fast] = points.front();
    const auto& [many, slow] = points.back();
    result_.optimizer = slow > fast ? (slow - fast) / (many - few) : slow / many;
    result_.optimizer_constant = std::max(0.0, slow - result_.optimizer * many);
  }

  void measure_collectives(device::Backend& backend, comm::Groups& groups) {
    const bool cuda = deck_.run.device == deck::Device::cuda;
    const DType dtype = cuda ? DType::bf16 : DType::f32;
    const std::int64_t ranks = groups.world->size();
    std::vector<double> sizes = {0.0625, 1};
    if (cuda) sizes.insert(sizes.end(), {8, 64, 512});
    comm::Communicator& group = *groups.data;
    for (const double mib : sizes) {
      const std::size_t count =
          static_cast<std::size_t>(mib * (1 << 20)) / size_of(dtype) / ranks * ranks;
      const device::Buffer memory = backend.allocate(count * size_of(dtype), "a collective");
      const auto measure = [&](const char* operation, const std::function<void()>& call) {
        // Enough for a millisecond on a GPU, whose host runs ahead.
        const int calls = cuda ? std::clamp(static_cast<int>(64 / mib), 1, 20) : 1;
        std::vector<double> seconds;
        for (int repeat = -2; repeat < settings_.repeats; ++repeat) {
          backend.synchronize();
          groups.world->barrier();
          const Stopwatch watch;
          for (int i = 0; i < calls; ++i) call();
          backend.synchronize();
          const double longest = slowest(*groups.world, watch.seconds() / calls);
          if (repeat >= 0) seconds.push_back(longest);
        }
        result_.collectives.push_back({.operation = operation,
                                       .ranks = ranks,
                                       .bytes = mib * (1 << 20),
                                       .seconds = median(seconds)});
      };
      void* data = memory.get();
      measure("all-reduce", [&] { group.all_reduce(data, count, dtype, comm::Reduce::sum); });
      measure("reduce-scatter", [&] { group.reduce_scatter(data, count / ranks, dtype); });
      measure("all-gather", [&] { group.all_gather(data, count / ranks, dtype); });
    }
  }

  /// From each stage of a pipeline to the next, as the executor sends activations.
  void measure_messages(int ranks) {
    deck::Deck deck = passes_deck(deck_, 1, settings_.micro.back(), false, ranks);
    deck.parallel.pipeline = ranks;
    train::Devices devices = train::make_devices(deck, comm::MpiCommunicator::world());
    comm::Communicator& group = *devices.groups.pipeline;
    const std::size_t largest = plan::message_bytes(deck);
    const int messages = deck.run.device == deck::Device::cuda ? 8 : 1;
    const device::Buffer memory = devices.backend->allocate(largest, "a message");
    for (std::size_t bytes = std::min<std::size_t>(largest, 65536);; bytes *= 8) {
      bytes = std::min(bytes, largest);
      std::vector<double> seconds;
      for (int repeat = -2; repeat < settings_.repeats; ++repeat) {
        devices.backend->synchronize();
        devices.groups.world->barrier();
        const Stopwatch watch;
        for (int i = 0; i < messages; ++i) {
          if (group.rank() == 0)
            group.send(memory.get(), bytes, 1, comm::kActivationTag)->wait();
          else if (group.rank() == 1)
            group.receive(memory.get(), bytes, 0, comm::kActivationTag)->wait();
        }
        devices.backend->synchronize();
        const double longest = slowest(*devices.groups.world, watch.seconds() / messages);
        if (repeat >= 0) seconds.push_back(longest);
      }
      result_.collectives.push_back({.operation = "send",
                                     .ranks = 2,
                                     .bytes = static_cast<double>(bytes),
                                     .seconds = median(seconds)});
      if (bytes == largest) break;
    }
  }

  /// Passes at each tensor size without collectives, or, with `group`, at its size with them: what
  /// these add is written into the profiles that were measured without.
  void measure_passes(device::Backend& backend, comm::MpiCommunicator& world,
                      comm::Communicator* group) {
    for (const std::int64_t tensor : settings_.tensor) {
      if (group && tensor != group->size()) continue;
      std::unique_ptr<Stages> stages;
      for (const bool sequence : {false, true}) {
        if (sequence && (tensor == 1 || deck_.model.sequence % tensor != 0)) continue;
        for (const std::int64_t micro : settings_.micro) {
          const deck::Deck deck = passes_deck(deck_, tensor, micro, sequence, settings_.layers);
          if (!stages)
            stages = std::make_unique<Stages>(deck, vocab_, backend, group ? group->rank() : 0);
          const double limit = (group || world.size() == 1 ? 1.0 : 0.7) * settings_.seconds;
          if (slowest(world, since_start_.seconds()) > limit) return;
          if (!fits(deck, backend, world, *stages)) break;
          SilentGroup silent(static_cast<int>(tensor));
          comm::Communicator& used = group ? *group : silent;
          plan::Profile profile =
              time_stages(deck, vocab_, backend, used, *stages, settings_.repeats);
          for (plan::UnitSeconds* units :
               {&profile.forward, &profile.own->backward, &profile.own->weight_gradient})
            for (double* part : {&units->embedding, &units->block, &units->head})
              *part = slowest(world, *part);
          group ? add_collectives(profile) : result_.profiles.push_back(profile);
        }
      }
    }
  }

  bool fits(const deck::Deck& deck, const device::Backend& backend, comm::MpiCommunicator& world,
            const Stages& stages) const {
    const auto memory = backend.memory();
    const double available = memory.total > 0 ? static_cast<double>(memory.total - memory.used)
                                              : static_cast<double>(available_memory());
    const auto config = plan::stage_config(deck, {.size = vocab_});
    const bool room =
        available == 0 || 1.1 * static_cast<double>(bytes_of(config, stages.layout())) < available;
    return world.all_reduce(room, comm::Reduce::min) > 0;
  }

  void add_collectives(const plan::Profile& with) {
    for (plan::Profile& without : result_.profiles) {
      if (!without.same_passes(with)) continue;
      const auto added = [](const plan::UnitSeconds& a, const plan::UnitSeconds& b) {
        return plan::UnitSeconds{std::max(0.0, a.embedding - b.embedding),
                                 std::max(0.0, a.block - b.block), std::max(0.0, a.head - b.head)};
      };
      without.own->tensor_forward = added(with.forward, without.forward);
      without.own->tensor_backward = added(with.own->backward, without.own->backward);
    }
  }

  const deck::Deck& deck_;
  std::int64_t vocab_;
  ProfileSettings settings_;
  Stopwatch since_start_;
  plan::MeasuredGpu result_;
};

/// "1,2,4" as numbers.
std::vector<std::int64_t> parse_list(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const bool digits = !word.empty() && word.size() < 7 &&
                        word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stol(word) < 1)
      throw UsageError("{} {}: expected whole numbers, such as 1,2,4", option, text);
    numbers.push_back(std::stol(word));
  }
  if (numbers.empty()) throw UsageError("{} is empty", option);
  std::ranges::sort(numbers);
  return numbers;
}

void print_passes(const plan::MeasuredGpu& gpu) {
  std::string text = fmt::format(
      "{}: launch {:.2f} us, optimizer {:.1f} ps a parameter and {:.0f} us\n"
      "tensor sequence micro      embedding               block                head\n"
      "                      fwd ms    bwd ms     fwd ms    bwd ms     fwd ms    bwd ms\n",
      gpu.name, 1e6 * gpu.launch, 1e12 * gpu.optimizer, 1e6 * gpu.optimizer_constant);
  for (const plan::Profile& p : gpu.profiles)
    text += fmt::format(
        "{:>6} {:>8} {:>5} {:>9.4f} {:>9.4f} {:>10.4f} {:>9.4f} {:>10.4f} {:>9.4f}\n", p.tensor,
        p.own->sequence_parallel ? "yes" : "no", p.micro, 1e3 * p.forward.embedding,
        1e3 * p.own->backward.embedding, 1e3 * p.forward.block, 1e3 * p.own->backward.block,
        1e3 * p.forward.head, 1e3 * p.own->backward.head);
  print_out(text);
}

ExitCode profile(const DeckArguments& arguments, ProfileSettings settings,
                 std::unique_ptr<comm::MpiCommunicator> world) {
  deck::Deck deck = deck::load(arguments.path, arguments.overrides,
                               {.need_data = false, .automatic = train::automatic_device()});
  const std::int64_t vocab = plan::planned_vocabulary(deck);
  const bool cuda = deck.run.device == deck::Device::cuda;
  if (settings.micro.empty())
    settings.micro =
        cuda ? std::vector<std::int64_t>{1, 2, 4, 8, 16} : std::vector<std::int64_t>{1, 2};
  if (settings.tensor.empty()) settings.tensor = {1, 2, 4, 8};
  const std::int64_t kv_heads = deck.model.kv_heads.value_or(deck.model.heads);
  std::erase_if(settings.tensor, [&](std::int64_t tensor) {
    return deck.model.heads % tensor != 0 || deck.model.ffn % tensor != 0 ||
           (kv_heads % tensor != 0 && tensor % kv_heads != 0);
  });
  if (settings.tensor.empty())
    throw train::CollectiveError(ExitCode::deck,
                                 "--tensor: no size divides model.heads and model.ffn, and fits "
                                 "model.kv_heads");
  settings.layers = std::min<int>(cuda ? 4 : 1, static_cast<int>(deck.model.layers));
  const int rank = world->rank();
  const plan::MeasuredGpu measured = Profiler(deck, vocab, settings).run(std::move(world));
  if (rank != 0) return ExitCode::success;
  plan::MeasuredGpu all;
  std::error_code none;
  if (std::filesystem::exists(settings.file, none)) {
    all = plan::load_measured_gpu(settings.file);
    if (all.name != measured.name)
      throw DeckError("'{}' is the profile of '{}', but this is '{}': give another -o FILE",
                      settings.file.string(), all.name, measured.name);
  }
  all.update(measured);
  write_file_atomically(
      settings.file,
      plan::to_yaml(all,
                    "# Measured by trireme-bench profile. Passes are of one micro-batch, "
                    "without the tensor ranks' collectives,\n"
                    "# which tensor_*_ms adds where several ranks measured.\n"));
  print_passes(measured);
  print_out(fmt::format("wrote {}\n", settings.file.string()));
  return ExitCode::success;
}

}  // namespace

ExitCode run_profile(int argc, char** argv) {
  po::options_description options = deck_options();
  options.add_options()                                                                          //
      ("file,o", po::value<std::string>()->value_name("FILE"), "the profile, which is updated")  //
      ("micro", po::value<std::string>()->value_name("N,..."),
       "micro-batches; by default 1,2,4,8,16 as far as they fit, on the host 1,2")  //
      ("tensor-sizes", po::value<std::string>()->value_name("N,..."),
       "tensor sizes, whatever the number of ranks; by default 1,2,4,8")  //
      ("repeats", po::value<int>()->default_value(5)->value_name("N"),
       "passes that are timed; the median counts")  //
      ("seconds", po::value<double>()->default_value(120)->value_name("S"),
       "begin no other measurement after so many seconds");
  if (answers_deck_help(argc, argv, kProfileProgram, kProfileUsage, options))
    return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  if (answers_deck_questions(arguments)) return ExitCode::success;
  const auto& values = arguments.values;
  if (!values.count("file")) throw UsageError("-o FILE.yaml is missing");
  ProfileSettings settings{.repeats = values["repeats"].as<int>(),
                           .seconds = values["seconds"].as<double>(),
                           .file = values["file"].as<std::string>()};
  if (settings.repeats < 1 || !(settings.seconds > 0))
    throw UsageError("--repeats and --seconds: expected 1 or more");
  if (values.count("micro"))
    settings.micro = parse_list("--micro", values["micro"].as<std::string>());
  if (values.count("tensor-sizes"))
    settings.tensor = parse_list("--tensor-sizes", values["tensor-sizes"].as<std::string>());
  return run_on_ranks(kProfileProgram,
                      [&](auto world) { return profile(arguments, settings, std::move(world)); });
}

}  // namespace trireme::bench
