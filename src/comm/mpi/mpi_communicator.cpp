#include "comm/mpi/mpi_communicator.hpp"

#include <chrono>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/mpi/stall_diagnostics.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"
#include "core/tensor.hpp"

namespace trireme::comm {
namespace {

/// Seconds of this thread in MPI calls.
thread_local double seconds_waited = 0.0;

/// Adds the length of its scope to them.
class MpiTime {
 public:
  MpiTime() : start_(std::chrono::steady_clock::now()) {}
  ~MpiTime() {
    const auto end = std::chrono::steady_clock::now();
    seconds_waited += std::chrono::duration<double>(end - start_).count();
  }
  MpiTime(const MpiTime&) = delete;
  MpiTime& operator=(const MpiTime&) = delete;

 private:
  const std::chrono::steady_clock::time_point start_;
};

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return std::string(text, static_cast<std::size_t>(length));
}

/// Throws CommunicationError naming the group unless `code` is MPI_SUCCESS.
void check_in_group(int code, const char* expression, const std::string& group, int rank) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  throw CommunicationError(fmt::format("{} failed in group '{}', rank {} of it, on {}: {}",
                                       expression, group, rank, host_name(), error_text(code)));
}
// Runs a call of this group, watched while a time-out is set.
#define TRIREME_MPI_IN_GROUP(call)                            \
  do {                                                        \
    const auto watched = timeout_.watch(#call, name_, rank_); \
    const MpiTime time;                                       \
    check_in_group((call), #call, name_, rank_);              \
  } while (false)

/// The ranks of `group` as numbers of the world.
std::shared_ptr<const Ranks> ranks_in_world(MPI_Comm group, int size) {
  MPI_Group members = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  TRIREME_MPI(MPI_Comm_group(group, &members));
  TRIREME_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  Ranks numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  auto ranks = std::make_shared<Ranks>(numbers.size());
  TRIREME_MPI(MPI_Group_translate_ranks(members, size, numbers.data(), world, ranks->data()));
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return ranks;
}

/// The time-out of MPI_Finalize: that of the calls before it.
Watched::Clock::duration finalize_timeout{};

MPI_Datatype type_of(DType dtype) {
  TRIREME_CHECK(dtype == accumulation_type(dtype), "MPI does not reduce {}", name_of(dtype));
  return dtype == DType::f64 ? MPI_DOUBLE : MPI_FLOAT;
}

MPI_Op op_of(Reduce op) {
  switch (op) {
    case Reduce::sum:
      return MPI_SUM;
    case Reduce::max:
      return MPI_MAX;
    case Reduce::min:
      return MPI_MIN;
  }
  throw InternalError("unknown reduction {}", static_cast<int>(op));
}

/// One message as one or more MPI messages, whose counts are ints; MPI keeps those of one tag in
/// order.
class MpiRequest final : public Request {
 public:
  MpiRequest(std::string name, int rank, CollectiveTimeout timeout)
      : name_(std::move(name)), rank_(rank), timeout_(std::move(timeout)) {}

  MPI_Request* add() { return &parts_.emplace_back(MPI_REQUEST_NULL); }

  void wait() override {
    // MPI_Wait sets a completed request to MPI_REQUEST_NULL, for which it returns immediately.
    for (MPI_Request& part : parts_) TRIREME_MPI_IN_GROUP(MPI_Wait(&part, MPI_STATUS_IGNORE));
  }

 private:
  std::vector<MPI_Request> parts_;
  std::string name_;
  int rank_;
  CollectiveTimeout timeout_;
};

}  // namespace

std::unique_ptr<WatchedCall> CollectiveTimeout::watch(std::string_view call,
                                                      const std::string& group, int rank) const {
  if (!watchdog) return nullptr;
  return std::make_unique<WatchedCall>(
      *watchdog,
      fmt::format("{} in group '{}', rank {} of it,", call.substr(0, call.find('(')), group, rank),
      limit, ranks);
}

double seconds_in_mpi() { return seconds_waited; }

void check_mpi(int code, const char* expression, const char* file, int line) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  throw InternalError("{}:{}: {} failed on rank {}, {}: {}", file, line, expression, rank,
                      host_name(), error_text(code));
}

// ---------------------------------------------------------------------------- MPI's life

MpiEnvironment::MpiEnvironment() {
  isolate_singleton();
  int provided = MPI_THREAD_SINGLE;
  TRIREME_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  TRIREME_CHECK(provided == MPI_THREAD_MULTIPLE, "this MPI library does not support threads");
  TRIREME_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
}

MpiEnvironment::~MpiEnvironment() {
  // During an exception this rank must not wait for the others.
  if (std::uncaught_exceptions() > 0) return;
  std::optional<WatchedCall> watched;
  const auto watchdog = Watchdog::shared();
  if (finalize_timeout.count() > 0) watched.emplace(*watchdog, "MPI_Finalize", finalize_timeout);
  MPI_Finalize();
}

// ---------------------------------------------------------------------------- groups

MpiCommunicator::MpiCommunicator(MPI_Comm handle, std::string name)
    : handle_(handle), name_(std::move(name)) {
  TRIREME_MPI(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN));
  TRIREME_MPI(MPI_Comm_rank(handle_, &rank_));
  TRIREME_MPI(MPI_Comm_size(handle_, &size_));
  timeout_.ranks = ranks_in_world(handle_, size_);
}

MpiCommunicator::~MpiCommunicator() {
  if (diagnostics_) timeout_.watchdog->set_diagnosis({});
  diagnostics_.reset();
  int finalized = 0;
  MPI_Finalized(&finalized);
  // Freeing is collective: not during an exception, either.
  if (handle_ != MPI_COMM_WORLD && !finalized && std::uncaught_exceptions() == 0)
    MPI_Comm_free(&handle_);
}

void MpiCommunicator::set_timeout(double seconds) {
  timeout_.watchdog = Watchdog::shared();
  timeout_.limit = to_duration(seconds);
  finalize_timeout = timeout_.limit;
  if (diagnostics_ || size_ == 1) return;
  diagnostics_ =
      std::make_unique<StallDiagnostics>(all_gather_text(host_name()), timeout_.watchdog);
  timeout_.watchdog->set_diagnosis(
      [this](const Ranks& ranks) { return diagnostics_->diagnose(ranks); },
      [this] { return diagnostics_->awaits_stacks(); });
}

std::unique_ptr<WatchedCall> MpiCommunicator::watch(std::string_view what) const {
  return timeout_.watch(what, name_, rank_);
}

WatchedWork MpiCommunicator::work(std::string what, double minimum, ProgressBy progress) const {
  const auto least = to_duration(minimum);
  return WatchedWork(
      size_ > 1 ? timeout_.watchdog : nullptr, std::move(what), std::max(timeout_.limit, least),
      least > timeout_.limit ? "longer than comm.timeout" : "comm.timeout", progress);
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::world() {
  auto world = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, "world");
  set_process_rank(world->rank());
  return world;
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::split(int color, int key,
                                                        std::string name) const {
  MPI_Comm part = MPI_COMM_NULL;
  TRIREME_MPI_IN_GROUP(MPI_Comm_split(handle_, color < 0 ? MPI_UNDEFINED : color, key, &part));
  if (part == MPI_COMM_NULL) return nullptr;
  auto group = std::make_unique<MpiCommunicator>(part, std::move(name));
  group->timeout_.watchdog = timeout_.watchdog;
  group->timeout_.limit = timeout_.limit;
  return group;
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::split_by_node() const {
  MPI_Comm part = MPI_COMM_NULL;
  TRIREME_MPI_IN_GROUP(
      MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part));
  return std::make_unique<MpiCommunicator>(part, "node");
}

// ---------------------------------------------------------------------------- collectives

void* MpiCommunicator::widen(void* data, int count, DType dtype) {
  if (dtype == accumulation_type(dtype)) return data;
  const auto elements = static_cast<std::size_t>(count);
  if (widened_.size() < elements) widened_.resize(elements);
  convert_to_float(data, elements, dtype, widened_.data());
  return widened_.data();
}

void MpiCommunicator::all_reduce(void* data, std::size_t count, DType dtype, Reduce op) {
  if (size_ == 1) return;
  for_each_chunk(count, kMaxReduction, [&](std::size_t offset, int n) {
    std::byte* chunk = static_cast<std::byte*>(data) + offset * size_of(dtype);
    void* values = widen(chunk, n, dtype);
    TRIREME_MPI_IN_GROUP(MPI_Allreduce(MPI_IN_PLACE, values, n, type_of(accumulation_type(dtype)),
                                       op_of(op), handle_));
    if (values != chunk) convert_from_float(widened_.data(), n, dtype, chunk);
  });
}

// The next two loop over the parts: chunks of all parts are strided in memory and cannot be passed
// in one MPI call, and pipelined trees move as many bytes as MPI's ring would.

void MpiCommunicator::reduce_scatter(void* data, std::size_t count, DType dtype) {
  if (size_ == 1) return;
  for (int owner = 0; owner < size_; ++owner) {
    for_each_chunk(count, kMaxReduction, [&](std::size_t offset, int n) {
      std::byte* chunk = static_cast<std::byte*>(data) + (owner * count + offset) * size_of(dtype);
      void* values = widen(chunk, n, dtype);
      const bool own = rank_ == owner;
      TRIREME_MPI_IN_GROUP(MPI_Reduce(own ? MPI_IN_PLACE : values, own ? values : nullptr, n,
                                      type_of(accumulation_type(dtype)), MPI_SUM, owner, handle_));
      if (own && values != chunk) convert_from_float(widened_.data(), n, dtype, chunk);
    });
  }
}

void MpiCommunicator::all_gather(void* data, std::size_t count, DType dtype) {
  const std::size_t bytes = count * size_of(dtype);
  for (int owner = 0; owner < size_; ++owner)
    broadcast(static_cast<std::byte*>(data) + owner * bytes, bytes, owner);
}

void MpiCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  if (size_ == 1) return;
  for_each_chunk(bytes, kMaxCount, [&](std::size_t offset, int n) {
    TRIREME_MPI_IN_GROUP(
        MPI_Bcast(static_cast<std::byte*>(data) + offset, n, MPI_BYTE, root, handle_));
  });
}

void MpiCommunicator::barrier() {
  if (size_ == 1) return;
  TRIREME_MPI_IN_GROUP(MPI_Barrier(handle_));
}

void MpiCommunicator::all_reduce_sum(std::uint64_t* data, std::size_t count) {
  if (size_ == 1) return;
  for_each_chunk(count, kMaxCount, [&](std::size_t offset, int n) {
    TRIREME_MPI_IN_GROUP(
        MPI_Allreduce(MPI_IN_PLACE, data + offset, n, MPI_UINT64_T, MPI_SUM, handle_));
  });
}

std::vector<std::string> MpiCommunicator::all_gather_text(const std::string& text) {
  if (size_ == 1) return {text};
  std::vector<int> lengths(static_cast<std::size_t>(size_));
  lengths[static_cast<std::size_t>(rank_)] = static_cast<int>(text.size());
  TRIREME_MPI_IN_GROUP(
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, lengths.data(), 1, MPI_INT, handle_));
  std::vector<std::string> texts;
  for (int owner = 0; owner < size_; ++owner) {
    std::string& copy = texts.emplace_back(owner == rank_ ? text : std::string());
    copy.resize(static_cast<std::size_t>(lengths[static_cast<std::size_t>(owner)]));
    broadcast(copy.data(), copy.size(), owner);
  }
  return texts;
}

// ---------------------------------------------------------------------------- messages

std::unique_ptr<Request> MpiCommunicator::send(const void* data, std::size_t bytes, int peer,
                                               int tag) {
  auto request = std::make_unique<MpiRequest>(name_, rank_, timeout_);
  for_each_chunk(bytes, kMaxCount, [&](std::size_t offset, int n) {
    TRIREME_MPI_IN_GROUP(MPI_Isend(static_cast<const std::byte*>(data) + offset, n, MPI_BYTE, peer,
                                   tag, handle_, request->add()));
  });
  return request;
}

std::unique_ptr<Request> MpiCommunicator::receive(void* data, std::size_t bytes, int peer,
                                                  int tag) {
  auto request = std::make_unique<MpiRequest>(name_, rank_, timeout_);
  for_each_chunk(bytes, kMaxCount, [&](std::size_t offset, int n) {
    TRIREME_MPI_IN_GROUP(MPI_Irecv(static_cast<std::byte*>(data) + offset, n, MPI_BYTE, peer, tag,
                                   handle_, request->add()));
  });
  return request;
}

}  // namespace trireme::comm
