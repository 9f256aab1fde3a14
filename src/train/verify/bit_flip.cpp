#include "train/verify/bit_flip.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <vector>

#include "core/error.hpp"

namespace trireme::train {
namespace {

constexpr const char* kTargets[] = {"weights", "gradients", "activations", "messages"};

[[noreturn]] void refuse(const std::string& text) {
  throw DeckError(
      "train.verify.inject = {}: expected weights, gradients, activations or messages, then any of "
      "rank=, iteration=, bit=, element= and times= with a whole number",
      text);
}

}  // namespace

BitFlip BitFlip::parse(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const auto target = std::find(std::begin(kTargets), std::end(kTargets), word);
  if (target == std::end(kTargets)) refuse(text);
  BitFlip flip{.target = static_cast<Target>(target - std::begin(kTargets))};
  while (words >> word) {
    const std::size_t equals = word.find('=');
    std::int64_t value = 0;
    const char* const end = word.data() + word.size();
    if (equals == std::string::npos) refuse(text);
    const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, value);
    if (error != std::errc() || stop != end || value < 0) refuse(text);
    const std::string name = word.substr(0, equals);
    if (name == "rank")
      flip.rank = static_cast<int>(value);
    else if (name == "iteration")
      flip.iteration = value;
    else if (name == "bit" && value < 64)
      flip.bit = static_cast<int>(value);
    else if (name == "element")
      flip.element = value;
    else if (name == "times")
      flip.times = value;
    else
      refuse(text);
  }
  return flip;
}

void BitFlip::apply(device::Backend& backend, const Tensor& tensor) const {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t at = std::min(element, tensor.size() - 1) * width;
  const std::int64_t flipped = std::min<std::int64_t>(bit, 8 * width - 2);
  std::byte* const address = static_cast<std::byte*>(tensor.data) + at + flipped / 8;
  std::byte value{};
  backend.download(&value, address, 1);
  value ^= std::byte{1} << (flipped % 8);
  backend.upload(address, &value, 1);
  backend.synchronize();
}

}  // namespace trireme::train
