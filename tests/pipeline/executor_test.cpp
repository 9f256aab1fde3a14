// The executor under 1F1B: every micro-batch's value and gradient arrives where it belongs.
#include "pipeline/executor.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"

namespace trireme::pipeline {
namespace {

// Stage s turns a micro-batch's value x into (s + 2) x + s, so that the order of stages shows; the
// first stage's x is the micro-batch's number plus 1.
double into_stage(int stage, int micro_batch) {
  double x = micro_batch + 1;
  for (int s = 0; s < stage; ++s) x = (s + 2) * x + s;
  return x;
}

// The last stage starts from the gradient 1 / (micro-batch + 1); every stage multiplies by its
// derivative s + 2.
double gradient_out_of_stage(int stages, int stage, int micro_batch) {
  double gradient = 1.0 / (micro_batch + 1);
  for (int s = stages - 1; s >= stage; --s) gradient *= s + 2;
  return gradient;
}

/// A stage that does arithmetic on whole tensors, checks what it finds, and takes a random time;
/// one stage takes much longer than the others, so that they run ahead of it as far as they can.
class Arithmetic final : public StageWork {
 public:
  /// Element i of a tensor is its value plus i * `kRamp`, so that truncation shows.
  static constexpr double kRamp = 1.0 / 1024;

  /// With `one_buffer`, input and output of a slot are the same memory, as in a stage without
  /// layers.
  Arithmetic(int stages, int stage, int slots, int size, bool one_buffer, int slow_stage)
      : stages_(stages),
        stage_(stage),
        size_(size),
        longest_(stage == slow_stage ? 6000 : 500),
        random_(100 * stages + stage) {
    for (int slot = 0; slot < slots; ++slot) {
      inputs_.emplace_back(size);
      outputs_.emplace_back(one_buffer ? 0 : size);
    }
    for (auto& gradient : gradients_) gradient.resize(size);
  }

  Tensor input(int slot) override { return view(inputs_[slot]); }
  Tensor output(int slot) override {
    return view(outputs_[slot].empty() ? inputs_[slot] : outputs_[slot]);
  }
  Tensor gradient(int which) override { return view(gradients_[which]); }

  void forward(int micro_batch, int slot) override {
    dawdle();
    if (stage_ == 0) fill(input(slot), into_stage(0, micro_batch));
    expect(input(slot), into_stage(stage_, micro_batch), "input", micro_batch);
    fill(output(slot), into_stage(stage_ + 1, micro_batch));
    forwards.push_back(micro_batch);
  }

  void backward(int micro_batch, int slot, const Tensor& gradient) override {
    dawdle();
    if (stage_ == stages_ - 1) fill(gradient, 1.0 / (micro_batch + 1));
    expect(output(slot), into_stage(stage_ + 1, micro_batch), "kept output", micro_batch);
    expect(gradient,
           gradient_out_of_stage(stages_, stage_, micro_batch) / static_cast<double>(stage_ + 2),
           "gradient", micro_batch);
    fill(gradient, gradient_out_of_stage(stages_, stage_, micro_batch));
    backwards.push_back(micro_batch);
  }

  std::vector<int> forwards, backwards;  ///< micro-batches in the order in which they came

 private:
  Tensor view(std::vector<double>& buffer) const { return {buffer.data(), DType::f64, {size_}}; }

  void fill(const Tensor& tensor, double value) const {
    for (std::int64_t i = 0; i < size_; ++i)
      tensor.as<double>()[i] = value + static_cast<double>(i) * kRamp;
  }

  void expect(const Tensor& tensor, double value, const char* what, int micro_batch) const {
    for (std::int64_t i = 0; i < size_; ++i)
      ASSERT_NEAR(tensor.as<double>()[i], value + static_cast<double>(i) * kRamp, 1e-9 * value)
          << what << " of micro-batch " << micro_batch << " on stage " << stage_ << ", element "
          << i;
  }

  void dawdle() {
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::uniform_int_distribution(longest_ / 2, longest_)(random_)));
  }

  int stages_, stage_;
  std::int64_t size_;
  int longest_;  ///< microseconds
  std::mt19937 random_;
  std::vector<std::vector<double>> inputs_, outputs_;
  std::vector<double> gradients_[2];
};

/// Elements of a message that MPI sends at once, and of one that waits for its receiver.
constexpr int kSizes[] = {1, 5000};

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(Executor, EveryMicroBatchPassesEveryStage) {
  const auto world = comm::MpiCommunicator::world();
  const int stages = world->size(), stage = world->rank();
  for (const int size : kSizes) {
    for (const bool one_buffer : {false, true}) {
      for (const int micro_batches : {1, 2, 3, 8}) {
        for (const int slow_stage : {0, stages - 1}) {
          SCOPED_TRACE(fmt::format("{} elements, {} micro-batches, stage {} is slow", size,
                                   micro_batches, slow_stage));
          Arithmetic work(stages, stage, one_f_one_b_slots(stages, stage, micro_batches), size,
                          one_buffer, slow_stage);
          execute(one_f_one_b(stages, stage, micro_batches), work, *world);
          EXPECT_EQ(work.forwards, first_numbers(micro_batches));
          EXPECT_EQ(work.backwards, first_numbers(micro_batches));
        }
      }
    }
  }
}

TEST(Executor, ForwardOnlyReusesItsSlots) {
  const auto world = comm::MpiCommunicator::world();
  const int stages = world->size(), stage = world->rank();
  for (const int size : kSizes) {
    for (const int slots : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} elements, {} slots", size, slots));
      Arithmetic work(stages, stage, slots, size, /*one_buffer=*/false, /*slow_stage=*/stages - 1);
      execute(forward_only(stages, stage, 8, slots), work, *world);
      EXPECT_EQ(work.forwards, first_numbers(8));
      EXPECT_TRUE(work.backwards.empty());
    }
  }
}

}  // namespace
}  // namespace trireme::pipeline
