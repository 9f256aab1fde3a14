#include "comm/mpi/groups.hpp"

#include <string>
#include <utility>

#include "core/error.hpp"

namespace trireme::comm {
namespace {

[[noreturn]] void throw_as(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::data:
      throw DataError("{}", message);
    case ExitCode::io:
      throw IoError("{}", message);
    case ExitCode::deck:
      throw DeckError("{}", message);
    case ExitCode::usage:
      throw UsageError("{}", message);
    default:
      throw InternalError("{}", message);
  }
}

}  // namespace

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::data:
      return "data";
    case Axis::pipeline:
      return "pipeline";
    case Axis::embedding:
      return "embedding";
  }
  return "";
}

Groups make_groups(std::unique_ptr<MpiCommunicator> world, const grid::Layout& layout,
                   const Connect& connect) {
  TRIREME_CHECK(world->size() == layout.ranks(), "{} ranks for a layout of {}", world->size(),
                layout.ranks());
  Groups groups;
  groups.layout = layout;
  groups.place = layout.coordinates_of(world->rank());
  const auto [tensor, data, pipeline] = groups.place;
  const auto split = [&](int color, int key, Axis axis) -> std::unique_ptr<Communicator> {
    std::unique_ptr<MpiCommunicator> part = world->split(color, key, std::string(name_of(axis)));
    if (!part || !connect) return part;
    return connect(axis, std::move(part));
  };
  groups.tensor = split(layout.rank_of({0, data, pipeline}), tensor, Axis::tensor);
  groups.data = split(layout.rank_of({tensor, 0, pipeline}), data, Axis::data);
  groups.pipeline = split(layout.rank_of({tensor, data, 0}), pipeline, Axis::pipeline);
  const bool tied_copy = layout.pipeline > 1 && (groups.is_first_stage() || groups.is_last_stage());
  groups.embedding =
      split(tied_copy ? layout.rank_of({tensor, data, 0}) : -1, pipeline, Axis::embedding);
  groups.world = std::move(world);
  return groups;
}

void agree(MpiCommunicator& ranks, const std::function<void()>& step) {
  if (ranks.size() == 1) return step();
  int code = 0;
  std::string message;
  try {
    step();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ExitCode::internal);
    message = error.what();
  }
  if (ranks.all_reduce(code, Reduce::max) == 0) return;
  for (const std::string& text : ranks.all_gather_text(std::to_string(code) + " " + message)) {
    if (const int first = std::stoi(text); first != 0)
      throw_as(static_cast<ExitCode>(first), text.substr(text.find(' ') + 1));
  }
}

}  // namespace trireme::comm
