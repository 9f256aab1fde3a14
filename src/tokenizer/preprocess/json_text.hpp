// Texts in lines of JSON.
#pragma once

#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// The string under `key` of the JSON object in `line`; of a repeated key the last value counts.
/// NaN, Infinity and -Infinity, which Python writes though JSON has none, are numbers. Throws
/// DataError "place: reason" when the line is no JSON object or has no string under that key.
std::string json_text(std::string_view line, const std::string& key, const std::string& place);

/// Whether `line` is a JSON object, in the same sense.
bool is_json_object(std::string_view line);

}  // namespace trireme::tokenizer
