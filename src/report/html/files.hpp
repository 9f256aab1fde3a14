// The files of this folder and of third_party that a page consists of, as text.
#pragma once

#include <string_view>

namespace trireme::report::html {

extern const std::string_view kPage, kStyle, kScript;  ///< report.html, report.css, report.js
extern const std::string_view kUplot, kUplotCss;

}  // namespace trireme::report::html
