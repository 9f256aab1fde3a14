#include "train/startup/collective.hpp"

#include <algorithm>
#include <vector>

#include "core/system/identity.hpp"

namespace trireme::train {

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
    // Reading and preparing data may take longer than an operation between ranks.
    constexpr double kMinutes = 60.0;
    const comm::WatchedWork watched = world.work("work of rank 0", 10.0 * kMinutes);
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

}  // namespace trireme::train
