// SPDX-License-Identifier: Apache-2.0
// Builds the one-line message of an InputError.
#include "base/error.hpp"

#include <fmt/format.h>

namespace checkop {
namespace {

std::string escaped(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", c);
    } else {
      line += c;
    }
  }
  return line;
}

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 1000, kHead = 700, kTail = 200;
  if (text.size() <= kMost) return text;
  // Moves a cut to the next UTF-8 character boundary: continuation bytes are 10xxxxxx.
  const auto boundary = [&](size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
    return at;
  };
  return text.substr(0, boundary(kHead)) + "..." + text.substr(boundary(text.size() - kTail));
}

std::string part(const std::string& text) { return shortened(escaped(text)); }

}  // namespace

InputError::InputError(const std::string& where, const std::string& what, const std::string& hint)
    : std::runtime_error((where.empty() ? "" : part(where) + ": ") + part(what) +
                         (hint.empty() ? "" : "; " + part(hint))) {}

}  // namespace checkop
