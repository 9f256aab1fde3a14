// Texts in lines of JSON.
#pragma once

#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// The string under `key` of the JSON object in `line`; of a repeated key the last value counts.
/// What Python's json.loads reads is read: NaN, Infinity and -Infinity are numbers, numbers may be
/// of any size, and strings under other keys may hold surrogates without their pair. Throws
/// DataError "place: reason" when the line is no JSON object or has no string of characters under
/// that key.
std::string json_text(std::string_view line, const std::string& key, const std::string& place);

/// Whether `line` is a JSON object, in the same sense.
bool is_json_object(std::string_view line);

}  // namespace trireme::tokenizer
