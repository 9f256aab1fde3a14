#include "checkpoint/read_ahead.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

/// A ring of buffers that threads fill and the calling one empties in order.
class Ring {
 public:
  Ring(std::size_t count, std::size_t buffers, std::size_t bytes) : count_(count), full_(buffers) {
    for (std::size_t i = 0; i < buffers; ++i)
      buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  }

  std::byte* buffer(std::size_t i) const { return buffers_[i % buffers_.size()].get(); }

  /// The next one to read, once its buffer is free; count where there is none left.
  std::size_t next_to_read() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return error_ || read_ == count_ || read_ < used_ + buffers_.size(); });
    return error_ ? count_ : std::exchange(read_, std::min(read_ + 1, count_));
  }
  void note_read(std::size_t i) {
    note([&] { full_[i % full_.size()] = true; });
  }
  /// False where there was an error.
  bool wait_for(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || full_[i % full_.size()]; });
    return !error_;
  }
  void note_used(std::size_t i) {
    note([&] {
      full_[i % full_.size()] = false;
      used_ = i + 1;
    });
  }
  void fail(std::exception_ptr error) {
    note([&] {
      if (!error_) error_ = std::move(error);
    });
  }
  void rethrow_error() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  template <typename Change>
  void note(const Change& change) {
    const std::scoped_lock lock(mutex_);
    change();
    changed_.notify_all();
  }

  const std::size_t count_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<char> full_;
  std::size_t read_ = 0, used_ = 0;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace

void read_ahead(std::size_t count, int threads, std::size_t bytes,
                const std::function<void(std::size_t i, void* buffer)>& read,
                const std::function<void(std::size_t i, const void* buffer)>& use) {
  Ring ring(count, 2 * static_cast<std::size_t>(threads), bytes);
  const auto guarded = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      ring.fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> readers;  // joined at the end of this block
    guarded([&] {
      for (int thread = 0; thread < threads; ++thread)
        readers.emplace_back([&] {
          guarded([&] {
            for (std::size_t i; (i = ring.next_to_read()) < count; ring.note_read(i))
              read(i, ring.buffer(i));
          });
        });
      for (std::size_t i = 0; i < count && ring.wait_for(i); ++i) {
        use(i, ring.buffer(i));
        ring.note_used(i);
      }
    });
  }
  ring.rethrow_error();
}

}  // namespace trireme::checkpoint
