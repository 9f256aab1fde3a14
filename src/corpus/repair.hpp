// Text repair: the common rules of ftfy.fix_text (Robyn Speer, "ftfy", 2019).
#pragma once

#include <string>
#include <string_view>

namespace trireme::corpus {

/// Valid UTF-8 in, valid UTF-8 out; repairing twice changes nothing more. In this order, until
/// nothing changes:
///  1. HTML entities become characters unless the text has a "<": the named ones of HTML 4, and
///     numbers; a semicolon is needed.
///  2. Escape sequences of terminals vanish.
///  3. Mojibake: UTF-8 that was read as Latin-1 or Windows-1252, once or several times, is read
///     again. A sequence is repaired where it is a whole character of UTF-8 and implausible as
///     text: all of 3 or 4 bytes; those of 2 bytes after U+00C2 or U+00C3, and in runs of two or
///     more (Greek, Cyrillic), and all of a line with one of these. A capital letter before a
///     quote, a dash or an ellipsis stays when it ends a word in capitals.
///  4. C1 control characters become those of Windows-1252.
///  5. Ligatures become letters; full-width forms become ASCII.
///  6. Curly quotes become straight.
///  7. Line breaks of all kinds become \n.
///  8. Control characters, byte-order marks and interlinear annotations vanish; tabs and form feeds
///     stay.
///  9. Normal form C.
std::string repair_text(std::string_view text);

/// Whether the text is a Python literal of bytes: b'...' or b"...", with no such quote inside.
bool is_bytes_literal(std::string_view text);

/// What Python's literal_eval(text).decode() gives. Throws DataError with the reason:
/// characters outside ASCII, \x without two digits, bytes that are not UTF-8.
std::string decode_bytes_literal(std::string_view text);

}  // namespace trireme::corpus
