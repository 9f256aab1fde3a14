// What `sed` makes of a template: the substitutions with which scripts fill in a ds_config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::convert::shell {

/// What `sed` prints for `text` with the one `command`, "s/NAME/value/" or "s/NAME/value/g"; any
/// sign may stand for the `/`. Empty where the command is another, or NAME is a pattern.
std::optional<std::string> substitute(std::string_view command, std::string_view text);

}  // namespace trireme::convert::shell
