#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/commands.hpp"
#include "comm/communicator.hpp"
#include "core/clock.hpp"
#include "core/text.hpp"
#include "mpi_app.hpp"

namespace trireme::bench {
namespace {

constexpr const char* kCommProgram = "trireme-bench comm";
constexpr const char* kCommUsage =
    "Usage: mpirun -n RANKS trireme-bench comm [options]\n"
    "Times what the ranks of a run send each other, over NCCL where each has a GPU, else over "
    "MPI;\n"
    "and where GPUs reach each other, what goes through peer memory.\n\n";

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct CommSettings {
  bool cuda = false;
  std::vector<std::size_t> sizes;  ///< MiB
  int repeats = 0;
  bool json = false;
};

/// An operation on `bytes`. `bus` turns its bytes per second into those that each link carries:
/// what nccl-tests calls bus bandwidth, to be compared with the hardware's whatever the number of
/// ranks.
struct Operation {
  std::string name;
  double bus;
  std::function<void(std::size_t bytes)> call;
};

struct CommRow {
  std::string name;
  std::size_t mib = 0;
  double ms = 0.0;
  double rate = 0.0;      ///< GB/s of the operation's bytes
  double bus_rate = 0.0;  ///< GB/s on each link
};

/// Everything that a rank measures with.
class CommMeter {
 public:
  CommMeter(const CommSettings& settings, comm::MpiCommunicator& world)
      : settings_(settings), world_(world), dtype_(settings.cuda ? DType::bf16 : DType::f32) {
    const int rank = world.rank(), size = world.size();
    comm::NcclOptions options;
    if (settings.cuda) {
      backend_ = device::make_cuda_backend(comm::node_local_rank(world));
      for (int from = 0; size > 1 && from < size; ++from)
        options.routes.push_back({from, (from + 1) % size, comm::kActivationTag});
      device_group_ = comm::make_device_communicator(world, "bench", backend_->stream(), options);
    } else {
      backend_ = device::make_host_backend(1);
    }
    next_ = (rank + 1) % size;
    previous_ = (rank + size - 1) % size;
    const std::size_t bytes =
        kMiB * *std::max_element(settings.sizes.begin(), settings.sizes.end());
    data_ = backend_->allocate(bytes, "a benchmark's buffer");
    received_ = backend_->allocate(bytes, "a benchmark's buffer");
    if (!settings.cuda) return;
    options.message_bytes = bytes;
    options.through_peers = true;
    peer_group_ = comm::make_device_communicator(world, "bench peers", backend_->stream(), options);
    shared_ = peer_group_->register_buffer(data_.get(), bytes);
    shared_scratch_ = peer_group_->register_buffer(received_.get(), bytes);
    if (shared_scratch_)
      peer_group_->set_staging_buffer(received_.get(), bytes, comm::min_reduce_scatter_bytes(size));
  }

  void measure() {
    for (const Operation& operation : operations())
      for (const std::size_t mib : settings_.sizes) rows_.push_back(measure(operation, mib));
  }

  void print() const {
    const std::string where =
        settings_.cuda ? fmt::format("{}, NCCL {}", backend_->gpu_name(), comm::nccl_version())
                       : "host memory, MPI";
    if (settings_.json) {
      nlohmann::json rows = nlohmann::json::array();
      for (const CommRow& row : rows_)
        rows.push_back({{"name", row.name},
                        {"mib", row.mib},
                        {"ms", row.ms},
                        {"gbps", row.rate},
                        {"bus_gbps", row.bus_rate}});
      const nlohmann::json all = {
          {"ranks", world_.size()}, {"where", where}, {"dtype", name_of(dtype_)}, {"rows", rows}};
      return print_out(all.dump(2) + "\n");
    }
    std::string text =
        fmt::format("{}, {}, {}\n{:<20} {:>8} {:>10} {:>9} {:>9}\n", counted(world_.size(), "rank"),
                    where, name_of(dtype_), "operation", "MiB", "ms", "GB/s", "bus GB/s");
    for (const CommRow& row : rows_)
      text += fmt::format("{:<20} {:>8} {:>10.3f} {:>9.1f} {:>9.1f}\n", row.name, row.mib, row.ms,
                          row.rate, row.bus_rate);
    print_out(text);
  }

 private:
  comm::Communicator& group() { return device_group_ ? *device_group_ : world_; }

  std::vector<Operation> operations() {
    std::vector<Operation> all = collectives(group(), "");
    if (shared_) std::ranges::copy(collectives(*peer_group_, "peer "), std::back_inserter(all));
    if (shared_scratch_) std::ranges::copy(copies(), std::back_inserter(all));
    all.push_back(message(group(), ""));
    if (shared_) all.push_back(message(*peer_group_, "peer "));
    return all;
  }

  /// To the next rank, while one from the previous comes in.
  Operation message(comm::Communicator& group, const std::string& prefix) {
    return {prefix + "send and receive", 1.0, [this, &group](std::size_t bytes) {
              const auto sent = group.send(data_.get(), bytes, next_, comm::kActivationTag);
              group.receive(received_.get(), bytes, previous_, comm::kActivationTag)->wait();
              sent->wait();
            }};
  }

  std::vector<Operation> collectives(comm::Communicator& group, const std::string& prefix) {
    const double ranks = world_.size();
    const double all_but_own = (ranks - 1.0) / ranks;
    const auto count = [this](std::size_t bytes) { return bytes / size_of(dtype_); };
    const auto part = [this, count](std::size_t bytes) { return count(bytes) / world_.size(); };
    return {{prefix + "all-reduce", 2.0 * all_but_own,
             [=, this, &group](std::size_t bytes) {
               group.all_reduce(data_.get(), count(bytes), dtype_, comm::Reduce::sum);
             }},
            {prefix + "reduce-scatter", all_but_own,
             [=, this, &group](std::size_t bytes) {
               group.reduce_scatter(data_.get(), part(bytes), dtype_);
             }},
            {prefix + "all-gather", all_but_own, [=, this, &group](std::size_t bytes) {
               group.all_gather(data_.get(), part(bytes), dtype_);
             }}};
  }

  /// Those through peer memory that the copy engines run, overlapped with other work.
  std::vector<Operation> copies() {
    const double ranks = world_.size();
    std::vector<Operation> all = {
        {"copies reduce-scatter", (ranks - 1.0) / ranks, [=, this](std::size_t bytes) {
           const std::size_t part = bytes / size_of(dtype_) / world_.size();
           peer_group_->start_reduce_scatter(data_.get(), part, dtype_)->wait();
         }}};
    if (world_.size() == 2)
      all.push_back(
          {"copies all-reduce", 1.0, [=, this](std::size_t bytes) {
             const std::size_t count = bytes / size_of(dtype_);
             peer_group_->start_all_reduce(data_.get(), count, dtype_, comm::Reduce::sum)->wait();
           }});
    return all;
  }

  CommRow measure(const Operation& operation, std::size_t mib) {
    const std::size_t bytes = mib * kMiB;
    // Enough for several milliseconds on a GPU, whose host runs ahead.
    const int calls =
        settings_.cuda ? static_cast<int>(std::clamp<std::size_t>(1024 / mib, 3, 50)) : 1;
    std::vector<double> seconds;
    for (int repeat = -1; repeat < settings_.repeats; ++repeat) {  // the first is not counted
      backend_->synchronize();
      world_.barrier();
      const Stopwatch watch;
      for (int i = 0; i < calls; ++i) operation.call(bytes);
      backend_->synchronize();
      const double slowest = world_.all_reduce(watch.seconds() / calls, comm::Reduce::max);
      if (repeat >= 0) seconds.push_back(slowest);
    }
    const double typical = median(seconds);
    const double rate = 1e-9 * static_cast<double>(bytes) / typical;
    return {.name = operation.name,
            .mib = mib,
            .ms = 1e3 * typical,
            .rate = rate,
            .bus_rate = rate * operation.bus};
  }

  const CommSettings settings_;
  comm::MpiCommunicator& world_;
  const DType dtype_;
  std::unique_ptr<device::Backend> backend_;
  std::unique_ptr<comm::Communicator> device_group_;
  std::unique_ptr<comm::Communicator> peer_group_;
  device::Buffer data_, received_;
  /// Of data_ and received_ through peer memory; null where that cannot be.
  std::unique_ptr<comm::RegisteredBuffer> shared_, shared_scratch_;
  int next_ = 0, previous_ = 0;
  std::vector<CommRow> rows_;
};

/// Whether every rank has its own GPU.
bool have_gpus(comm::MpiCommunicator& world) {
  const int needed = comm::node_local_size(world);
  const bool enough = static_cast<int>(device::visible_gpus().size()) >= needed;
  return world.all_reduce(enough, comm::Reduce::min) > 0.0;
}

/// "2,32,512" as numbers.
std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const long size = word.find_first_not_of("0123456789") == std::string::npos && !word.empty() &&
                              word.size() < 7
                          ? std::stol(word)
                          : 0;
    if (size < 1) throw UsageError("--sizes {}: expected whole numbers of MiB, such as 2,32", text);
    sizes.push_back(static_cast<std::size_t>(size));
  }
  if (sizes.empty()) throw UsageError("--sizes is empty");
  return sizes;
}

}  // namespace

ExitCode run_comm(int argc, char** argv) {
  po::options_description options("Options");
  options.add_options()  //
      ("device", po::value<std::string>()->value_name("WHERE"),
       "host or cuda; by default cuda where every rank has a GPU")  //
      ("sizes", po::value<std::string>()->value_name("MIB,..."),
       "sizes in MiB; by default 2,32,512 on GPUs, 2,32 on the host")  //
      ("repeats", po::value<int>()->default_value(7)->value_name("N"),
       "measurements; the median counts")  //
      ("json", po::bool_switch(), "print JSON instead of a table");
  options.add(general_options());
  if (answers_deck_help(argc, argv, kCommProgram, kCommUsage, options)) return ExitCode::success;
  const po::variables_map values = parse_options(argc, argv, options);
  const std::string device = values.count("device") ? values["device"].as<std::string>() : "";
  if (!device.empty() && device != "host" && device != "cuda")
    throw UsageError("--device {}: expected host or cuda", device);
  CommSettings settings{.repeats = values["repeats"].as<int>(), .json = values["json"].as<bool>()};
  if (settings.repeats < 1) throw UsageError("--repeats {}: expected 1 or more", settings.repeats);
  const std::string sizes = values.count("sizes") ? values["sizes"].as<std::string>() : "";
  if (!sizes.empty()) settings.sizes = parse_sizes(sizes);
  return run_on_ranks(kCommProgram, [&](std::unique_ptr<comm::MpiCommunicator> world) {
    if (world->size() == 1)
      throw CodedError<ExitCode::failure>(
          "one rank has no peer to send to: start it as 'mpirun -n 2 trireme-bench comm'");
    settings.cuda = device == "cuda" || (device.empty() && have_gpus(*world));
    if (settings.sizes.empty()) settings.sizes = parse_sizes(settings.cuda ? "2,32,512" : "2,32");
    CommMeter meter(settings, *world);
    meter.measure();
    if (world->rank() == 0) meter.print();
    return ExitCode::success;
  });
}

}  // namespace trireme::bench
