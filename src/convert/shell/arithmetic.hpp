// The whole-number arithmetic of `$(( ... ))`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::convert::shell {

/// The value of `expression`: whole numbers, names, + - * / % ** and brackets. `value_of` gives the
/// text of a name. Empty where a name has no whole number, a division is by zero, a result leaves
/// 64 bits, or there is anything else in it.
std::optional<std::int64_t> evaluate(
    std::string_view expression,
    const std::function<std::optional<std::string>(std::string_view)>& value_of);

}  // namespace trireme::convert::shell
