#include "checkpoint/checkpoint.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "checkpoint/elements.hpp"
#include "checkpoint/hdf5/metadata.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"

namespace trireme::checkpoint {
namespace {

/// Of the thread: computing comes first on a busy host.
constexpr int kNice = 10;
/// Interval in which wait() looks at the thread.
constexpr std::chrono::milliseconds kPollInterval{5};

std::int64_t copied_bytes(const std::vector<LocalTensor>& tensors, bool replicas) {
  std::int64_t bytes = 0;
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces)
      if (piece.owner || replicas) bytes += piece_bytes(piece, tensor.dtype);
  return bytes;
}

}  // namespace

BackgroundSave::BackgroundSave(comm::MpiCommunicator& ranks, device::Backend& memory,
                               const std::vector<LocalTensor>& tensors, bool replicas)
    : ranks_(ranks),
      memory_(memory),
      buffer_(memory.allocate_on_host(
          static_cast<std::size_t>(copied_bytes(tensors, replicas)),
          "copy of weights and optimizer (checkpoint.async, checkpoint.local)")),
      wait_begins_(memory.make_event()),
      wait_ends_(memory.make_event()) {}

BackgroundSave::~BackgroundSave() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::start(const std::filesystem::path& path, const Attributes& attributes,
                           const std::string& deck, const std::vector<LocalTensor>& tensors,
                           int compression) {
  TRIREME_CHECK(step_ == Step::idle, "'{}' is still being saved", path_.string());
  check_tensors(ranks_, tensors);
  path_ = std::filesystem::absolute(path);
  unfinished_ = unfinished_name(path);
  attributes_ = attributes;
  deck_ = deck;
  compression_ = compression;
  offsets_.assign(tensors.size(), 0);
  shard_.reset();
  start_copies(tensors, /*replicas=*/false);
}

void BackgroundSave::start_local(const std::filesystem::path& folder, const ShardHeader& header,
                                 const std::vector<LocalTensor>& tensors,
                                 const std::vector<int>& partners) {
  TRIREME_CHECK(step_ == Step::idle, "'{}' is still being saved", path_.string());
  path_ = shard_path(std::filesystem::absolute(folder), header.iteration, header.rank);
  unfinished_ = unfinished_name(path_);
  shard_ = header;
  auto number = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  ranks_.broadcast(&number, sizeof number, 0);
  shard_->save = fmt::format("{:016x}", number);
  partners_ = partners;
  // Shards of this iteration may be an abandoned run's: a kill during this save would leave some of
  // both.
  remove_shards(path_.parent_path(),
                [&](std::int64_t iteration) { return iteration == header.iteration; });
  if (!partners.empty() && !thread_ranks_) {
    thread_ranks_ = ranks_.split(0, ranks_.rank(), "copies of local checkpoints");
    copied_ = newest_copied(path_.parent_path(), header.iteration, ranks_, partners);
  }
  start_copies(tensors, /*replicas=*/true);
}

void BackgroundSave::start_copies(const std::vector<LocalTensor>& tensors, bool replicas) {
  copies_ = tensors;
  std::vector<std::pair<Piece*, std::int64_t>> pieces;  // with their bytes
  for (LocalTensor& tensor : copies_) {
    if (!replicas) std::erase_if(tensor.pieces, [](const Piece& piece) { return !piece.owner; });
    for (Piece& piece : tensor.pieces)
      pieces.emplace_back(&piece, piece_bytes(piece, tensor.dtype));
  }
  // In the order of their addresses: few large copies instead of thousands, which take longer to
  // start.
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.first->data < b.first->data; });
  auto* next = static_cast<std::byte*>(buffer_.get());
  for (std::size_t i = 0; i < pieces.size();) {
    const auto* source = static_cast<const std::byte*>(pieces[i].first->data);
    std::int64_t bytes = 0;
    for (; i < pieces.size() && pieces[i].first->data == source + bytes; ++i) {
      pieces[i].first->data = next + bytes;
      bytes += pieces[i].second;
    }
    memory_.start_copy(next, source, static_cast<std::size_t>(bytes));
    next += bytes;
  }
  step_ = Step::copies;
  waits_ = false;
  waited_seconds_ = 0.0;
}

void BackgroundSave::finish_copies() {
  if (step_ != Step::copies || waits_) return;
  wait_begins_->record();
  memory_.finish_copies();
  wait_ends_->record();
  waits_ = true;
}

bool BackgroundSave::advance() {
  if (step_ == Step::idle) return false;
  const bool working = thread_.joinable() && !done_;
  if (ranks_.all_reduce(working, comm::Reduce::max) > 0.0) return false;
  if (thread_.joinable()) thread_.join();
  try {
    comm::agree(ranks_, [&] {
      if (error_) std::rethrow_exception(std::exchange(error_, {}));
    });
    take_next_step();
  } catch (...) {
    error_ = {};
    try {
      clean_up(std::exchange(step_, Step::idle));
    } catch (const std::exception&) {
      // What stays takes space alone.
    }
    throw;
  }
  return step_ == Step::idle;
}

void BackgroundSave::wait(const std::function<void()>& publishing) {
  while (step_ != Step::idle) {
    if (thread_.joinable()) {
      // The other ranks wait for this one as long as its thread progresses.
      comm::WatchedWork work = ranks_.work(
          step_ == Step::partners ? fmt::format("copying '{}' to another node", path_.string())
                                  : fmt::format("writing '{}'", unfinished_.string()));
      for (std::int64_t seen = progress_; !done_; std::this_thread::sleep_for(kPollInterval))
        if (const std::int64_t now = progress_; std::exchange(seen, now) != now)
          work.note_progress();
    }
    advance();
    if (publishes()) publishing();
  }
}

// ---------------------------------------------------------------------------- steps

void BackgroundSave::take_next_step() {
  switch (step_) {
    case Step::copies:
      finish_copies();
      // Waits for the copies, and not for what was enqueued after them: the update continues.
      waited_seconds_ = 1e-3 * wait_ends_->milliseconds_since(*wait_begins_);
      if (shard_)
        return run(Step::shard,
                   [this] { write_shard(path_, *shard_, copies_, [this] { note_progress(); }); });
      return run(Step::checksums, [this] { compute_checksums(); });
    case Step::checksums:
      checksums_ = total_checksums(ranks_, copies_, std::move(checksums_));
      return run_on_first_rank(Step::metadata, [this] { reserve_and_describe(); });
    case Step::metadata:
      ranks_.broadcast(offsets_.data(), offsets_.size() * sizeof offsets_[0], 0);
      return run(Step::elements, [this] { write_elements(); });
    case Step::elements:
      return run_on_first_rank(Step::publishing, [this] { compress_and_publish(); });
    case Step::shard:
      if (partners_.empty()) return finish_shard();
      return run(Step::partners, [this] {
        // To its end, also when this save is cancelled: the other nodes wait for it.
        exchange_copies(path_.parent_path(), shard_->iteration, *thread_ranks_, partners_,
                        [this] { ++progress_; });
      });
    case Step::partners:
      return finish_shard();
    case Step::publishing:
    case Step::idle:
      step_ = Step::idle;
  }
}

void BackgroundSave::clean_up(Step failed) {
  if (failed == Step::shard)
    remove_shards(path_.parent_path(),
                  [&](std::int64_t iteration) { return iteration == shard_->iteration; });
  if (failed == Step::partners) remove_older_shards();
  if (ranks_.rank() == 0 && !shard_) remove_files(unfinished_);
}

void BackgroundSave::finish_shard() {
  step_ = Step::idle;
  if (!partners_.empty()) copied_ = shard_->iteration;
  remove_older_shards();
}

void BackgroundSave::remove_newer_shards(const std::filesystem::path& folder,
                                         std::int64_t iteration) {
  TRIREME_CHECK(step_ == Step::idle, "'{}' is still being saved", path_.string());
  ranks_.barrier();
  remove_shards(folder, [&](std::int64_t each) { return each > iteration; });
  ranks_.barrier();
  if (thread_ranks_) copied_ = newest_copied(folder, iteration, ranks_, partners_);
}

void BackgroundSave::remove_older_shards() {
  // All ranks have this one, so that one older one is enough: the newest, or that with copies on
  // other nodes while this one lacks them.
  const auto folder = path_.parent_path();
  std::int64_t before = -1;
  for (const auto& [name, path] : list_shards(folder))
    if (name.iteration < shard_->iteration) before = std::max(before, name.iteration);
  const bool lacks_copies = !partners_.empty() && copied_ < shard_->iteration;
  const std::int64_t kept = lacks_copies && copied_ >= 0 ? copied_ : before;
  remove_shards(folder, [&](std::int64_t iteration) {
    return iteration < shard_->iteration && iteration != kept;
  });
}

void BackgroundSave::run(Step step, std::function<void()> work) {
  step_ = step;
  done_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);  // of this thread
    try {
      work();
    } catch (const hdf5::Failure& failure) {
      error_ = std::make_exception_ptr(
          IoError("cannot write '{}': {}", unfinished_.string(), failure.what()));
    } catch (...) {
      error_ = std::current_exception();
    }
    done_ = true;
  });
}

void BackgroundSave::run_on_first_rank(Step step, std::function<void()> work) {
  if (ranks_.rank() == 0)
    run(step, std::move(work));
  else
    step_ = step;
}

void BackgroundSave::note_progress() {
  ++progress_;
  if (stop_) throw IoError("writing '{}' is cancelled", unfinished_.string());
}

void BackgroundSave::compute_checksums() {
  HostView view(nullptr);
  checksums_ = own_checksums(copies_, view, [this] { note_progress(); });
}

void BackgroundSave::reserve_and_describe() {
  reserve_files(unfinished_, max_file_bytes(deck_, copies_));
  PartFile file(unfinished_, [this] { note_progress(); });
  offsets_ = write_metadata(file, attributes_, deck_, copies_, checksums_);
}

void BackgroundSave::compress_and_publish() {
  if (compression_ > 0)
    compress(unfinished_, {attributes_, deck_, copies_, checksums_}, offsets_, compression_,
             [this] { note_progress(); });
  rename_and_publish(unfinished_, path_);
}

void BackgroundSave::write_elements() {
  HostView view(nullptr);
  PartFile file(unfinished_, [this] { note_progress(); });
  write_own_elements(file, copies_, offsets_, view);
}

}  // namespace trireme::checkpoint
