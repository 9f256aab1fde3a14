#include "train/training_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "comm/mpi/mpi_communicator.hpp"
#include "pipeline/schedule.hpp"
#include "plan/setup.hpp"

namespace trireme::train {
namespace {

constexpr int kTraceTag = 7;

double clock_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A communicator whose operations appear in the timeline. Those that block the compute stream are
/// ranges of it; the others have separate lanes.
class TracedCommunicator final : public comm::Communicator {
 public:
  using Communicator::all_reduce;

  TracedCommunicator(std::unique_ptr<comm::Communicator> inner, const std::string& group,
                     Timeline& timeline)
      : inner_(std::move(inner)), timeline_(timeline) {
    lane_ = timeline.lane(group + " collectives");
    if (group != "pipeline") return;
    for (const auto& [tag, what] : {std::pair(comm::kActivationTag, "activations"),
                                    std::pair(comm::kGradientTag, "gradients")}) {
      send_[tag] = timeline.lane(fmt::format("sends of {}", what));
      receive_[tag] = timeline.lane(fmt::format("receives of {}", what));
    }
  }

  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_reduce(void* data, std::size_t count, DType dtype, comm::Reduce op) override {
    const device::NamedRange range({"all-reduce"});
    inner_->all_reduce(data, count, dtype, op);
  }
  void reduce_scatter(void* data, std::size_t count, DType dtype) override {
    const device::NamedRange range({"reduce-scatter"});
    inner_->reduce_scatter(data, count, dtype);
  }
  void reduce_scatter_terms(void* data, std::size_t count, DType dtype, PeerTerms& terms) override {
    const device::NamedRange range({"reduce-scatter"});
    inner_->reduce_scatter_terms(data, count, dtype, terms);
  }
  void all_gather(void* data, std::size_t count, DType dtype) override {
    const device::NamedRange range({"all-gather"});
    inner_->all_gather(data, count, dtype);
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    const device::NamedRange range({"broadcast"});
    inner_->broadcast(data, bytes, root);
  }
  void barrier() override { inner_->barrier(); }
  double all_reduce(double value, comm::Reduce op) override {
    const device::NamedRange range({"all-reduce"});
    return inner_->all_reduce(value, op);
  }

  std::unique_ptr<comm::Request> send(const void* data, std::size_t bytes, int peer,
                                      int tag) override {
    return follow("send", send_[tag & 1], [&] { return inner_->send(data, bytes, peer, tag); });
  }
  std::unique_ptr<comm::Request> receive(void* data, std::size_t bytes, int peer,
                                         int tag) override {
    return follow("receive", receive_[tag & 1],
                  [&] { return inner_->receive(data, bytes, peer, tag); });
  }
  std::unique_ptr<comm::Request> start_all_reduce(void* data, std::size_t count, DType dtype,
                                                  comm::Reduce op) override {
    return follow("all-reduce", lane_,
                  [&] { return inner_->start_all_reduce(data, count, dtype, op); });
  }
  std::unique_ptr<comm::Request> start_reduce_scatter(void* data, std::size_t count,
                                                      DType dtype) override {
    return follow("reduce-scatter", lane_,
                  [&] { return inner_->start_reduce_scatter(data, count, dtype); });
  }
  std::unique_ptr<comm::Request> start_all_gather(void* data, std::size_t count,
                                                  DType dtype) override {
    return follow("all-gather", lane_,
                  [&] { return inner_->start_all_gather(data, count, dtype); });
  }
  std::unique_ptr<comm::Request> start_all_gather(void* data, std::size_t count, DType dtype,
                                                  PartArrivals& arrivals) override {
    return follow("all-gather", lane_,
                  [&] { return inner_->start_all_gather(data, count, dtype, arrivals); });
  }

  std::unique_ptr<comm::RegisteredBuffer> register_buffer(void* base, std::size_t bytes) override {
    return inner_->register_buffer(base, bytes);
  }
  void set_staging_buffer(void* base, std::size_t bytes, std::size_t min_bytes) override {
    inner_->set_staging_buffer(base, bytes, min_bytes);
  }
  std::unique_ptr<comm::CapturedCollectives> capture(const std::function<void()>& work) override {
    std::unique_ptr<comm::CapturedCollectives> captured;
    timeline_.pause([&] { captured = inner_->capture(work); });
    return captured;
  }

 private:
  template <typename Start>
  std::unique_ptr<comm::Request> follow(const char* name, int lane, const Start& start) {
    if (!timeline_.records()) return start();
    return timeline_.follow(name, lane, start);
  }

  std::unique_ptr<comm::Communicator> inner_;
  Timeline& timeline_;
  int lane_ = 0, send_[2] = {}, receive_[2] = {};
};

}  // namespace

Timeline::Timeline(const deck::Deck& deck, comm::Groups& groups, device::Backend& backend)
    : deck_(deck), groups_(groups), backend_(backend) {
  const auto trace = [&](std::unique_ptr<comm::Communicator>& group, const char* name) {
    if (group && group->size() > 1)
      group = std::make_unique<TracedCommunicator>(std::move(group), name, *this);
  };
  trace(groups.tensor, "tensor");
  trace(groups.data, "data");
  trace(groups.pipeline, "pipeline");
  trace(groups.embedding, "embedding");
}

Timeline::~Timeline() { device::range_listener(device::RangeListeners::timeline) = nullptr; }

int Timeline::lane(const std::string& name) {
  lanes_.push_back({name, device::make_side_stream(backend_)});
  return static_cast<int>(lanes_.size());
}

// ---------------------------------------------------------------------------- recording

std::unique_ptr<device::Event> Timeline::now() {
  std::unique_ptr<device::Event> event = backend_.make_event();
  event->record();
  return event;
}

void Timeline::begin_iteration(std::int64_t iteration, int micro_batches) {
  const auto& ranges = deck_.log.trace.iterations;
  const auto range = std::find_if(ranges.begin(), ranges.end(), [&](const auto& each) {
    return each.first <= iteration && iteration <= each.last;
  });
  if (range == ranges.end()) return;
  if (iteration <= iteration_) ++rewinds_;
  iteration_ = iteration;
  micro_batches_ = micro_batches;
  if (recording_) return;
  align_clocks();
  recording_ = true;
  first_ = iteration;
  last_ = range->last;
  device::range_listener(device::RangeListeners::timeline) = this;
}

void Timeline::pause(const std::function<void()>& work) {
  device::RangeListener*& listener = device::range_listener(device::RangeListeners::timeline);
  const bool recording = std::exchange(recording_, false);
  device::RangeListener* const listening = std::exchange(listener, nullptr);
  work();
  listener = listening;
  recording_ = recording;
}

void Timeline::begin(const device::RangeInfo& range) {
  spans_.push_back(
      std::make_shared<Span>(Span{.range = range, .iteration = iteration_, .begin = now()}));
  open_.push_back(spans_.back().get());
}

void Timeline::end() {
  if (open_.empty()) return;  // a range that began before the recording
  open_.back()->end = now();
  open_.pop_back();
}

/// Ends its span where the host sees the end.
class Timeline::FollowedRequest final : public comm::Request {
 public:
  FollowedRequest(std::unique_ptr<comm::Request> inner, Timeline& timeline,
                  std::shared_ptr<Span> span)
      : inner_(std::move(inner)), timeline_(timeline), span_(std::move(span)) {}

  void wait() override {
    inner_->wait();
    if (const auto span = std::exchange(span_, nullptr)) span->end = timeline_.now();
  }

 private:
  std::unique_ptr<comm::Request> inner_;
  Timeline& timeline_;
  std::shared_ptr<Span> span_;
};

std::unique_ptr<comm::Request> Timeline::follow(
    const char* name, int lane, const std::function<std::unique_ptr<comm::Request>()>& start) {
  const auto span = std::make_shared<Span>(
      Span{.range = {name}, .lane = lane, .iteration = iteration_, .begin = now()});
  spans_.push_back(span);
  std::unique_ptr<comm::Request> request = start();
  device::SideStream* stream = lanes_[lane - 1].stream.get();
  const auto* asynchronous = dynamic_cast<const comm::DeviceRequest*>(request.get());
  if (stream && asynchronous) {
    asynchronous->hold(stream->stream());
    span->end = stream->record();
    return request;
  }
  if (dynamic_cast<const comm::FinishedRequest*>(request.get())) {
    span->end = now();
    return request;
  }
  return std::make_unique<FollowedRequest>(std::move(request), *this, span);
}

// ---------------------------------------------------------------------------- clocks

void Timeline::align_clocks() {
  // The moment of an event on the host's clock: the shortest of a few tries.
  double best = HUGE_VAL;
  for (int attempt = 0; attempt < 5; ++attempt) {
    backend_.synchronize();
    const double before = clock_ms();
    std::unique_ptr<device::Event> event = now();
    backend_.synchronize();
    const double after = clock_ms();
    if (after - before >= best) continue;
    best = after - before;
    base_ = std::move(event);
    base_ms_ = (before + after) / 2;
  }
  const comm::ClockOffset offset = comm::clock_offset(*groups_.world, clock_ms);
  base_ms_ += offset.ms;
  clock_error_ms_ = best / 2 + offset.error_ms;
  if (!origin_ms_) {
    double origin = base_ms_;
    groups_.world->broadcast(&origin, sizeof origin, 0);
    origin_ms_ = origin;
  }
}

// ---------------------------------------------------------------------------- results

std::vector<report::TraceSpan> Timeline::resolve() {
  backend_.synchronize();
  std::vector<report::TraceSpan> spans;
  for (const auto& span : spans_) {
    if (!span->end) continue;  // of an operation that the host has not waited for yet
    const double start = base_ms_ - *origin_ms_ + span->begin->milliseconds_since(*base_);
    spans.push_back({.rank = groups_.world->rank(),
                     .lane = span->lane,
                     .name = span->range.name,
                     .iteration = span->iteration,
                     .micro_batch = span->range.micro_batch,
                     .chunk = span->range.chunk,
                     .start_ms = start,
                     .ms = std::max(0.0, span->end->milliseconds_since(*span->begin)),
                     .rewinds = rewinds_});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return std::pair(a.lane, a.start_ms) < std::pair(b.lane, b.start_ms);
  });
  // The operations of a lane run one after the other: what waited for the one before began then.
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].lane == 0 || spans[i].lane != spans[i - 1].lane) continue;
    const double late = spans[i - 1].start_ms + spans[i - 1].ms - spans[i].start_ms;
    if (late <= 0) continue;
    spans[i].start_ms += std::min(late, spans[i].ms);
    spans[i].ms -= std::min(late, spans[i].ms);
  }
  return spans;
}

report::TraceFigures Timeline::figures(const std::vector<report::TraceSpan>& spans) const {
  struct Window {
    double begin = HUGE_VAL, end = -HUGE_VAL, busy = 0;
  };
  std::map<std::int64_t, Window> windows;
  for (std::int64_t i = first_; i <= iteration_; ++i) windows[i] = {};
  for (const report::TraceSpan& span : spans) {
    if (!report::is_pass(span.name)) continue;
    Window& window = windows[span.iteration];
    window.begin = std::min(window.begin, span.start_ms);
    window.end = std::max(window.end, span.start_ms + span.ms);
    window.busy += span.ms;
  }
  double busy = 0, total = 0;
  comm::MpiCommunicator& world = *groups_.world;
  for (auto& [iteration, window] : windows) {
    busy += world.all_reduce(window.busy, comm::Reduce::sum);
    total += world.size() * (world.all_reduce(window.end, comm::Reduce::max) -
                             world.all_reduce(window.begin, comm::Reduce::min));
  }
  return {.first = first_,
          .last = iteration_,
          .ranks = world.size(),
          .bubble = total > 0 ? 1 - busy / total : 0.0,
          .clock_error_ms = world.all_reduce(clock_error_ms_, comm::Reduce::max),
          .simulated_bubble = simulated_bubble(spans)};
}

std::optional<double> Timeline::simulated_bubble(
    const std::vector<report::TraceSpan>& spans) const {
  // Milliseconds and number of each virtual stage's passes on all ranks.
  enum Kind { kForward, kBackward, kInput, kWeights, kKinds };
  pipeline::PipelineShape shape = plan::pipeline_shape(deck_);
  shape.micro_batches = micro_batches_;
  const int stages = shape.stages * shape.chunks;
  std::vector<double> sums(2 * kKinds * stages);
  for (const report::TraceSpan& span : spans) {
    const auto* kind =
        std::find(std::begin(report::kPassNames), std::end(report::kPassNames), span.name);
    if (kind == std::end(report::kPassNames)) continue;
    const int stage = std::max(span.chunk, 0) * shape.stages + groups_.place.pipeline;
    double* sum = &sums[2 * (kKinds * stage + (kind - std::begin(report::kPassNames)))];
    sum[0] += span.ms;
    sum[1] += 1;
  }
  groups_.world->all_reduce(sums.data(), sums.size(), DType::f64, comm::Reduce::sum);
  const auto mean = [&](int stage, Kind kind) {
    const double* sum = &sums[2 * (kKinds * stage + kind)];
    return sum[1] > 0 ? sum[0] / sum[1] : 0.0;
  };
  std::vector<pipeline::StepCosts> costs;
  for (int stage = 0; stage < stages; ++stage) {
    const double weights = mean(stage, kWeights);
    // A schedule that defers weight gradients may have whole backward passes, too.
    const double backward = weights > 0 ? mean(stage, kInput) + weights : mean(stage, kBackward);
    costs.push_back({.forward = mean(stage, kForward),
                     .backward = backward,
                     .weight_share = backward > 0 && weights > 0 ? weights / backward : 0.5});
    if (costs.back().forward <= 0 || backward <= 0) return std::nullopt;
  }
  return pipeline::simulate_stages(pipeline::make_schedules(shape), shape.micro_batches, costs,
                                   deck_.parallel.overlap.pipeline ? pipeline::SendRule::overlapped
                                                                   : pipeline::SendRule::exchanged)
      .bubble;
}

std::optional<report::TraceEvent> Timeline::end_iteration(std::int64_t iteration, bool ends) {
  if (!recording_ || (iteration < last_ && !ends)) return std::nullopt;
  recording_ = false;
  device::range_listener(device::RangeListeners::timeline) = nullptr;
  const std::vector<report::TraceSpan> spans = resolve();
  const report::TraceFigures all = figures(spans);
  const int rank = groups_.world->rank();
  std::string lines;
  if (!written_) {
    lines += report::trace_rank_line(
        rank, fmt::format("rank {}: stage {}, data {}, tensor {}", rank, groups_.place.pipeline,
                          groups_.place.data, groups_.place.tensor));
    lines += report::trace_lane_line(rank, 0, "compute");
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      lines += report::trace_lane_line(rank, static_cast<int>(i) + 1, lanes_[i].name);
  }
  for (const report::TraceSpan& span : spans) lines += report::trace_span_line(span);
  spans_.clear();
  open_.clear();
  write(lines, all);
  if (rank > 0) return std::nullopt;
  return report::TraceEvent{
      .iteration = iteration,
      .first = all.first,
      .path = (std::filesystem::path(deck_.run.output) / "trace.json").string(),
      .bubble = all.bubble,
      .simulated_bubble = all.simulated_bubble};
}

/// Rank 0 gets the lines of one rank after the other, so that it needs memory for those of one.
void Timeline::write(const std::string& lines, const report::TraceFigures& figures) {
  comm::MpiCommunicator& world = *groups_.world;
  if (world.rank() > 0) {
    std::uint64_t bytes = lines.size();
    world.send(&bytes, sizeof bytes, 0, kTraceTag)->wait();
    world.send(lines.data(), lines.size(), 0, kTraceTag)->wait();
    written_ = 0;
    return;
  }
  const std::filesystem::path path = std::filesystem::path(deck_.run.output) / "trace.json";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), written_ ? "r+" : "w"), &std::fclose);
  bool fine = file != nullptr;
  const auto put = [&](const std::string& text) {
    fine = fine && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  };
  if (written_)
    fine = fine && std::fseek(file.get(), static_cast<long>(*written_), SEEK_SET) == 0;
  else
    put(report::trace_head());
  put(lines);
  std::string received;
  for (int peer = 1; peer < world.size(); ++peer) {
    std::uint64_t bytes = 0;
    world.receive(&bytes, sizeof bytes, peer, kTraceTag)->wait();
    received.resize(bytes);
    world.receive(received.data(), bytes, peer, kTraceTag)->wait();
    put(received);
  }
  if (fine) written_ = static_cast<std::uintmax_t>(std::ftell(file.get()));
  put(report::trace_tail(figures));
  fine = fine && std::fflush(file.get()) == 0;
  if (!fine)
    std::fputs(fmt::format("warning: '{}' cannot be written\n", path.string()).c_str(), stderr);
}

}  // namespace trireme::train
