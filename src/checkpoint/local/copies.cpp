#include "checkpoint/local/shard.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "checkpoint/elements.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"

namespace trireme::checkpoint {

// ---- copies on other nodes

std::vector<int> nodes_of(comm::MpiCommunicator& world) {
  const auto node = world.split_by_node();
  double first = world.rank();  // the lowest rank of the node
  node->broadcast(&first, sizeof first, 0);
  std::vector<double> firsts(static_cast<std::size_t>(world.size()));
  firsts[static_cast<std::size_t>(world.rank())] = first;
  world.all_gather(firsts.data(), 1, DType::f64);
  std::map<double, int> numbers;
  for (const double each : firsts) numbers.try_emplace(each, 0);
  int next = 0;
  for (auto& [each, number] : numbers) number = next++;
  std::vector<int> nodes;
  for (const double each : firsts) nodes.push_back(numbers[each]);
  return nodes;
}

namespace {

/// One end of a transfer: after an error nothing more is done there.
class End {
 public:
  template <typename Work>
  void attempt(const Work& work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool has_failed() const { return error_ != nullptr; }
  void rethrow_error() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// Sends the file `source` to rank `to`, and writes what rank `from` sends to `target`; -1 for no
/// rank. An error of one end is thrown there after the exchange, so that the other end never waits;
/// where `source` cannot be read the other rank throws as well, and has no `target`. Calls
/// `progressed`, which must not throw, after every few MiB.
void transfer(comm::MpiCommunicator& ranks, const std::filesystem::path& source, int to, int from,
              const std::filesystem::path& target, const std::function<void()>& progressed) {
  constexpr int kTag = 17;
  constexpr std::int64_t kChunk = std::int64_t{8} << 20;
  const auto exchange = [&](const void* out, std::int64_t out_bytes, void* in,
                            std::int64_t in_bytes) {
    TRIREME_MPI(MPI_Sendrecv(out, static_cast<int>(out_bytes), MPI_BYTE,
                             to < 0 ? MPI_PROC_NULL : to, kTag, in, static_cast<int>(in_bytes),
                             MPI_BYTE, from < 0 ? MPI_PROC_NULL : from, kTag, ranks.handle(),
                             MPI_STATUS_IGNORE));
    progressed();
  };
  End sender, receiver;
  std::optional<ReadFile> input;
  std::optional<PartFile> file;
  std::filesystem::path part;
  std::int64_t sent = 0, received = 0;
  sender.attempt([&] {
    if (to >= 0) sent = static_cast<std::int64_t>(input.emplace(source).size());
  });
  exchange(&sent, sizeof sent, &received, sizeof received);
  receiver.attempt([&] {
    if (from < 0) return;
    part = create_part(target);
    reserve_space(part, received);
    file.emplace(part, progressed);
  });
  std::vector<std::byte> out(static_cast<std::size_t>(kChunk)), in(out.size());
  for (std::int64_t at = 0; at < std::max(sent, received); at += kChunk) {
    const std::int64_t out_bytes = std::clamp<std::int64_t>(sent - at, 0, kChunk);
    const std::int64_t in_bytes = std::clamp<std::int64_t>(received - at, 0, kChunk);
    sender.attempt([&] {
      if (out_bytes > 0)
        input->read(static_cast<std::size_t>(at), out.data(), static_cast<std::size_t>(out_bytes));
    });
    exchange(out.data(), out_bytes, in.data(), in_bytes);
    receiver.attempt([&] {
      if (in_bytes > 0) file->write(in.data(), in_bytes, at);
    });
  }
  const char was_read = !sender.has_failed();
  char is_whole = 1;
  exchange(&was_read, sizeof was_read, &is_whole, sizeof is_whole);
  receiver.attempt([&] {
    if (!file) return;
    if (is_whole == 0)
      throw IoError("cannot copy to '{}': rank {} cannot read it", target.string(), from);
    file->resize(received);
    file->sync();
    rename_part(part, target);
  });
  std::error_code ignored;
  if (receiver.has_failed() && !part.empty()) std::filesystem::remove(part, ignored);
  sender.rethrow_error();
  receiver.rethrow_error();
}

}  // namespace

void exchange_copies(const std::filesystem::path& folder, std::int64_t iteration,
                     comm::MpiCommunicator& ranks, const std::vector<int>& nodes,
                     const std::function<void()>& progressed) {
  const int count = *std::max_element(nodes.begin(), nodes.end()) + 1;
  std::vector<std::vector<int>> members(static_cast<std::size_t>(count));
  for (std::size_t rank = 0; rank < nodes.size(); ++rank)
    members[static_cast<std::size_t>(nodes[rank])].push_back(static_cast<int>(rank));
  const auto node = static_cast<std::size_t>(nodes[static_cast<std::size_t>(ranks.rank())]);
  const auto next = (node + 1) % members.size();
  const auto before = (node + members.size() - 1) % members.size();
  const auto place = static_cast<std::size_t>(
      std::find(members[node].begin(), members[node].end(), ranks.rank()) - members[node].begin());
  const int to = members[next].at(place), from = members[before].at(place);
  transfer(ranks, shard_path(folder, iteration, ranks.rank()), to, from,
           shard_path(folder, iteration, from, /*copy=*/true), progressed);
}

std::int64_t newest_copied(const std::filesystem::path& folder, std::int64_t last,
                           comm::MpiCommunicator& ranks, const std::vector<int>& nodes) {
  std::map<std::int64_t, std::ptrdiff_t> copies;
  for (const auto& [name, path] : list_shards(folder))
    if (name.iteration <= last) copies[name.iteration] += name.copy;
  const auto of_node =
      std::count(nodes.begin(), nodes.end(), nodes.at(static_cast<std::size_t>(ranks.rank())));
  std::string seen;
  for (const auto& [iteration, count] : copies)
    if (count >= of_node) seen += fmt::format("{}\n", iteration);
  std::map<std::int64_t, int> seen_by;
  for (const std::string& text : ranks.all_gather_text(seen)) {
    std::istringstream lines(text);
    for (std::int64_t iteration = 0; lines >> iteration;) ++seen_by[iteration];
  }
  std::int64_t newest = -1;
  for (const auto& [iteration, count] : seen_by)
    if (count == ranks.size()) newest = iteration;
  return newest;
}

// ---- finding

namespace {

/// The shards that each rank sees, by iteration: which ranks see whose.
using Inventory = std::map<std::int64_t, std::map<int, std::set<int>>>;

/// Collective.
Inventory take_inventory(const std::filesystem::path& folder, comm::MpiCommunicator& world,
                         std::int64_t newer_than) {
  std::string seen;
  for (const auto& [name, path] : list_shards(folder))
    if (name.iteration > newer_than && name.rank < world.size())
      seen += fmt::format("{} {}\n", name.iteration, name.rank);
  Inventory inventory;
  const std::vector<std::string> all = world.all_gather_text(seen);
  for (int rank = 0; rank < world.size(); ++rank) {
    std::istringstream text(all[static_cast<std::size_t>(rank)]);
    std::int64_t iteration = 0;
    for (int owner = 0; text >> iteration >> owner;) inventory[iteration][owner].insert(rank);
  }
  return inventory;
}

/// Brings every rank its shard of `iteration`, from the first rank that sees it. Collective.
void distribute(const std::filesystem::path& folder, comm::MpiCommunicator& world,
                std::int64_t iteration, const std::map<int, std::set<int>>& holders) {
  for (const auto& [owner, seen_by] : holders) {
    if (seen_by.contains(owner)) continue;
    const int sender = *seen_by.begin();
    comm::agree(world, [&, owner = owner] {
      comm::WatchedWork work = world.work("copying a local checkpoint", /*minimum=*/60.0);
      const auto progressed = [&] { work.note_progress(); };
      if (world.rank() == sender)
        transfer(world, *find_shard(folder, iteration, owner), owner, -1, {}, progressed);
      else if (world.rank() == owner)
        transfer(world, {}, -1, sender, shard_path(folder, iteration, owner), progressed);
    });
  }
}

/// The header of this rank's shard of `iteration` if it can be used; renames one that is damaged.
std::optional<ShardHeader> check_shard(const std::filesystem::path& folder, int rank,
                                       std::int64_t iteration, int ranks,
                                       const std::function<bool(const ShardHeader&)>& usable,
                                       std::string& problem, bool& damaged) {
  const auto path = find_shard(folder, iteration, rank);
  if (!path) return std::nullopt;
  try {
    verify_shard(*path);  // first: a damaged header says anything
    const ShardHeader header = read_shard_header(*path);
    if (header.ranks != ranks || header.rank != rank || !usable(header)) {
      problem = fmt::format("'{}' belongs to another layout or run", path->string());
      return std::nullopt;
    }
    return header;
  } catch (const Error& error) {
    problem = error.what();
    std::error_code ignored;
    std::filesystem::rename(*path, path->string() + kDamaged, ignored);
    damaged = !ignored;
    return std::nullopt;
  }
}

}  // namespace

std::optional<ShardHeader> find_shards(const std::filesystem::path& folder,
                                       comm::MpiCommunicator& world, std::int64_t newer_than,
                                       const std::function<bool(const ShardHeader&)>& usable,
                                       std::string& note) {
  std::set<std::int64_t> refused;
  bool explained = false;
  while (true) {
    Inventory inventory = take_inventory(folder, world, newer_than);
    std::erase_if(inventory, [&](const auto& each) {
      const bool whole = std::ssize(each.second) == world.size();
      if (!whole && note.empty())
        note = fmt::format("the local checkpoint of iteration {} lacks the shards of {}",
                           each.first, counted(world.size() - std::ssize(each.second), "rank"));
      return !whole || refused.contains(each.first);
    });
    if (inventory.empty()) return std::nullopt;
    const std::int64_t iteration = inventory.rbegin()->first;
    distribute(folder, world, iteration, inventory.rbegin()->second);
    std::string problem;
    bool damaged = false;
    const auto found = [&] {
      const comm::WatchedWork work =
          world.work("verifying a local checkpoint", /*minimum=*/60.0, comm::ProgressBy::cpu_time);
      return check_shard(folder, world.rank(), iteration, world.size(), usable, problem, damaged);
    }();
    if (world.all_reduce(found.has_value(), comm::Reduce::min) > 0.0) {
      const std::vector<std::string> saves = world.all_gather_text(found->save);
      if (std::ranges::count(saves, found->save) == world.size()) return found;
      // A disk that was away while the others went through the same iteration again.
      problem = fmt::format("the shards of iteration {} are not of one save", iteration);
    }
    const std::vector<std::string> problems = world.all_gather_text(problem);
    const auto first =
        std::ranges::find_if(problems, [](const auto& each) { return !each.empty(); });
    if (!explained && first != problems.end()) {
      note += (note.empty() ? "" : "; ") + *first;
      explained = true;
    }
    // Without the damaged file a copy on another node may serve.
    if (world.all_reduce(damaged, comm::Reduce::max) == 0.0) refused.insert(iteration);
  }
}

}  // namespace trireme::checkpoint
