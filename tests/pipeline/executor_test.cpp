// The executor: every micro-batch's value and gradient arrives where it belongs, under every
// schedule.
#include "pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::pipeline {
namespace {

// Link n turns a micro-batch's value x into (n + 2) x + n, so that the order of links shows; the
// first link's x is the micro-batch's number plus 1.
double into_link(int link, int micro_batch) {
  double x = micro_batch + 1;
  for (int n = 0; n < link; ++n) x = (n + 2) * x + n;
  return x;
}

// The last link starts from the gradient 1 / (micro-batch + 1); every link multiplies by its
// derivative n + 2.
double gradient_out_of_link(int links, int link, int micro_batch) {
  double gradient = 1.0 / (micro_batch + 1);
  for (int n = links - 1; n >= link; --n) gradient *= n + 2;
  return gradient;
}

/// How the memory of slots overlaps: not at all; input and output of a slot are the same, as in a
/// stage without layers; inputs of slots are the same in turn, and passes work with them.
enum class Memory { apart, one_buffer, shared_inputs };

/// A stage that does arithmetic on whole tensors, checks what it finds, and takes a random time;
/// one stage takes much longer than the others, so that they run ahead of it as far as they can.
class Arithmetic final : public StageWork {
 public:
  /// Element i of a tensor is its value plus i * `kRamp`, so that truncation shows.
  static constexpr double kRamp = 1.0 / 1024;

  Arithmetic(const PipelineShape& shape, int stage, int slots, int size, Memory memory,
             int slow_stage)
      : shape_(shape),
        stage_(stage),
        size_(size),
        memory_(memory),
        longest_(stage == slow_stage ? 2000 : 200),
        random_(100 * shape.stages + stage) {
    for (int slot = 0; slot < slots; ++slot) {
      inputs_.emplace_back(size);
      outputs_.emplace_back(memory == Memory::one_buffer ? 0 : size);
    }
    for (auto& gradient : gradients_) gradient.resize(size);
  }

  Tensor input(int slot) override {
    return view(inputs_[memory_ == Memory::shared_inputs ? slot % 2 : slot]);
  }
  Tensor output(int slot) override {
    return outputs_[slot].empty() ? input(slot) : view(outputs_[slot]);
  }
  Tensor gradient(int which) override {
    gradient_awaited_ = true;
    return view(gradients_[which]);
  }

  void forward(const Step& step) override {
    dawdle();
    const bool first = std::ranges::none_of(done, &Step::passes_gradient);
    EXPECT_FALSE(first && gradient_awaited_) << "before the " << to_string(step);
    const int link = link_of(step);
    if (link == 0) fill(input(step.slot), into_link(0, step.micro_batch));
    expect(input(step.slot), into_link(link, step.micro_batch), "input", step);
    fill(output(step.slot), into_link(link + 1, step.micro_batch));
    if (memory_ == Memory::shared_inputs) fill(input(step.slot), -1.0);
    done.push_back(step);
  }

  void backward(const Step& step, const Tensor& gradient) override {
    dawdle();
    const int link = link_of(step);
    const double leaving = gradient_out_of_link(links(), link, step.micro_batch);
    if (link == links() - 1) fill(gradient, 1.0 / (step.micro_batch + 1));
    expect(output(step.slot), into_link(link + 1, step.micro_batch), "kept output", step);
    expect(gradient, leaving / static_cast<double>(link + 2), "gradient", step);
    fill(gradient, leaving);
    // The rest of the backward finds what this one leaves over the output.
    fill(output(step.slot), leaving);
    if (memory_ == Memory::shared_inputs) fill(input(step.slot), -2.0);
    done.push_back(step);
  }

  void weight_gradient(const Step& step) override {
    dawdle();
    // A single buffer may be receiving already.
    if (!outputs_[step.slot].empty())
      expect(output(step.slot), gradient_out_of_link(links(), link_of(step), step.micro_batch),
             "kept gradient", step);
    done.push_back(step);
  }

  StageSchedule done;

 private:
  int links() const { return shape_.stages * shape_.chunks; }
  int link_of(const Step& step) const { return step.chunk * shape_.stages + stage_; }

  Tensor view(std::vector<double>& buffer) const { return {buffer.data(), DType::f64, {size_}}; }

  void fill(const Tensor& tensor, double value) const {
    for (std::int64_t i = 0; i < size_; ++i)
      tensor.as<double>()[i] = value + static_cast<double>(i) * kRamp;
  }

  void expect(const Tensor& tensor, double value, const char* what, const Step& step) const {
    for (std::int64_t i = 0; i < size_; ++i)
      ASSERT_NEAR(tensor.as<double>()[i], value + static_cast<double>(i) * kRamp, 1e-9 * value)
          << what << " of the " << to_string(step) << " on stage " << stage_ << ", element " << i;
  }

  void dawdle() {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution(longest_ / 2, longest_)(random_)));
  }

  PipelineShape shape_;
  int stage_;
  std::int64_t size_;
  Memory memory_;
  int longest_;  ///< microseconds
  std::mt19937 random_;
  std::vector<std::vector<double>> inputs_, outputs_;
  std::vector<double> gradients_[2];
  bool gradient_awaited_ = false;
};

/// Elements of a message that MPI sends eagerly, and of one that waits for its receiver.
constexpr int kSizes[] = {1, 5000};

/// Every kind of schedule for `stages` stages; those that run without overlap, too, if not
/// `overlap`.
std::vector<PipelineShape> shapes(int stages, bool overlap) {
  std::vector<PipelineShape> all;
  for (const int micro_batches : {1, 3, 8}) {
    all.push_back({ScheduleKind::one_f_one_b, stages, 1, micro_batches});
    all.push_back({ScheduleKind::zero_bubble, stages, 1, micro_batches});
  }
  if (!overlap) return all;
  for (const int chunks : {2, 3})
    for (const int groups : {1, 3})
      all.push_back({ScheduleKind::interleaved, stages, chunks, groups * stages});
  return all;
}

TEST(Executor, EveryMicroBatchPassesEveryLink) {
  const auto world = comm::MpiCommunicator::world();
  const int stages = world->size(), stage = world->rank();
  for (const bool overlap : {true, false})
    for (const PipelineShape& shape : shapes(stages, overlap)) {
      const StageSchedule schedule = make_schedule(shape, stage);
      for (const int size : kSizes)
        for (const Memory memory : {Memory::apart, Memory::one_buffer, Memory::shared_inputs})
          for (const int slow_stage : {0, stages - 1}) {
            SCOPED_TRACE(fmt::format(
                "schedule {} of {} chunks, {} elements, {} micro-batches, memory {}, stage {} is "
                "slow{}",
                static_cast<int>(shape.kind), shape.chunks, size, shape.micro_batches,
                static_cast<int>(memory), slow_stage, overlap ? "" : ", no overlap"));
            Arithmetic work(shape, stage, count_slots(schedule), size, memory, slow_stage);
            execute(schedule, work, *world, overlap);
            EXPECT_EQ(work.done, schedule);
          }
    }
}

TEST(Executor, ForwardOnlyReusesItsSlots) {
  const auto world = comm::MpiCommunicator::world();
  const int stages = world->size(), stage = world->rank();
  for (const int chunks : {1, 2})
    for (const int size : kSizes)
      for (const int slots : {1, 2}) {
        SCOPED_TRACE(fmt::format("{} chunks, {} elements, {} slots", chunks, size, slots));
        const PipelineShape shape{.stages = stages, .chunks = chunks, .micro_batches = 7};
        const StageSchedule schedule = forward_only(stages, stage, chunks, 7, slots);
        Arithmetic work(shape, stage, slots, size, Memory::apart, /*slow_stage=*/stages - 1);
        execute(schedule, work, *world, /*overlap=*/chunks > 1 || slots == 2);
        EXPECT_EQ(work.done, schedule);
      }
}

}  // namespace
}  // namespace trireme::pipeline
