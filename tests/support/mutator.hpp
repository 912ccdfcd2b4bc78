// SPDX-License-Identifier: Apache-2.0
// Damages files for tests of their readers. The damage depends only on the seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace checkop {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }

  /// Applies one to four damages to a JSON text, to its structure or its characters.
  std::string damage_json(std::string text) {
    const uint64_t times = 1 + below(4);
    for (uint64_t i = 0; i < times; ++i) {
      if (below(2) == 0) {
        text = restructured(text);
      } else {
        damage_text(text);
      }
    }
    return text;
  }

  void damage_bytes(std::string& bytes) {
    const uint64_t times = 1 + below(8);
    for (uint64_t i = 0; i < times && !bytes.empty(); ++i) {
      char& byte = bytes[below(bytes.size())];
      byte = below(2) == 0 ? static_cast<char>(byte ^ (1 << below(8))) : static_cast<char>(below(256));
    }
  }

 private:
  using Json = nlohmann::ordered_json;

  /// A value that a reader may not expect.
  std::string word() {
    static constexpr std::array<std::string_view, 50> kWords{"NaN",
                                                             "Infinity",
                                                             "-inf",
                                                             "null",
                                                             "true",
                                                             "false",
                                                             "0",
                                                             "-1",
                                                             "1",
                                                             "-0.0",
                                                             "1e-400",
                                                             "1e308",
                                                             "1e309",
                                                             "1.5",
                                                             "3.0",
                                                             "2147483648",
                                                             "4294967296",
                                                             "1099511627776",
                                                             "4611686018427387905",
                                                             "9223372036854775807",
                                                             "9223372036854775808",
                                                             "-9223372036854775808",
                                                             "18446744073709551615",
                                                             "18446744073709551616",
                                                             "1000000000000000000000000000000",
                                                             "\"\"",
                                                             "\" \"",
                                                             "\"all\"",
                                                             "\"none\"",
                                                             "\"fp32\"",
                                                             "\"qwen3-8b\"",
                                                             "\"a\\nb\"",
                                                             "\"\\u0000\"",
                                                             "\"\\ud800\"",
                                                             "\"\xff\xfe\"",
                                                             "\"\xc0\x80\"",
                                                             "\"\xed\xa0\x80\"",
                                                             "\xef\xbb\xbf",
                                                             "\"1:9223372036854775807:1\"",
                                                             "\"1:4096\"",
                                                             "\"1:1000000000:x2\"",
                                                             "\"1,2,\"",
                                                             "\"2*hidden + vocab\"",
                                                             "[]",
                                                             "{}",
                                                             "[[]]",
                                                             "[1, 2]",
                                                             "{\"op\": 1}",
                                                             "[\"logp\", \"matmul\"]",
                                                             "/* */"};
    if (below(12) == 0) return nested();
    if (below(40) == 0) return '"' + std::string(100'000, static_cast<char>('a' + below(26))) + '"';
    return std::string(kWords[below(kWords.size())]);
  }

  std::string nested() {
    const size_t depth = size_t{1} << below(18);
    std::string text;
    const bool objects = below(2) == 0;
    for (size_t i = 0; i < depth; ++i) text += objects ? "{\"a\":" : "[";
    text += "1";
    if (below(4) != 0) text += std::string(depth, objects ? '}' : ']');
    return text;
  }

  void damage_text(std::string& text) {
    if (text.empty()) return;
    const size_t at = below(text.size()), length = std::min<size_t>(1 + below(40), text.size() - at);
    switch (below(7)) {
      case 0:
        return damage_bytes(text);
      case 1:
        return text.resize(at);
      case 2:
        text.erase(at, length);
        return;
      case 3:
        text.insert(below(text.size()), text.substr(at, length));
        return;
      case 4:
        text.insert(at, word());
        return;
      case 5:
        return double_a_key(text, at);
      default:
        return replace_a_number(text, at);
    }
  }

  /// Repeats the next key after `at` with another value.
  void double_a_key(std::string& text, size_t at) {
    const size_t colon = text.find("\":", at);
    if (colon == std::string::npos || colon == 0) return;
    const size_t begin = text.rfind('"', colon - 1);
    if (begin == std::string::npos) return;
    text.insert(begin, text.substr(begin, colon + 2 - begin) + word() + ", ");
  }

  void replace_a_number(std::string& text, size_t at) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text.find_first_not_of("0123456789.eE+-", begin), text.size());
    text.replace(begin, end - begin, word());
  }

  static void collect(Json& value, std::vector<Json*>& all) {
    all.push_back(&value);
    if (!value.is_structured()) return;
    for (auto& each : value) collect(each, all);
  }

  /// Damages the structure of a JSON text. Returns a text that is not JSON unchanged.
  std::string restructured(const std::string& text) {
    if (std::count(text.begin(), text.end(), '[') + std::count(text.begin(), text.end(), '{') > 1000) return text;
    Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return text;
    std::vector<Json*> all;
    collect(root, all);
    Json &one = *all[below(all.size())], &other = *all[below(all.size())];
    switch (below(6)) {
      case 0: {
        const Json swapped = other;
        const Json kept = one;
        one = swapped;
        if (below(2) == 0) root = Json::array({root, kept});
        break;
      }
      case 1:
        if (one.is_array() && !one.empty()) one.erase(below(one.size()));
        break;
      case 2:
        if (one.is_object() && !one.empty()) {
          auto member = one.begin();
          std::advance(member, below(one.size()));
          one.erase(member);
        }
        break;
      case 3:
        if (one.is_array() && !one.empty()) one.push_back(one[below(one.size())]);
        break;
      case 4:
        one = Json::array({one});
        break;
      default: {
        const std::string text_of_value = word();
        if (text_of_value.size() > 1000) break;  // too deeply nested to copy
        const Json value = Json::parse(text_of_value, nullptr, false);
        if (!value.is_discarded()) one = value;
      }
    }
    return root.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::mt19937_64 random_;
};

}  // namespace checkop
