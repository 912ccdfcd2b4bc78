// SPDX-License-Identifier: Apache-2.0
// Typed reader over nlohmann/json. A value knows its file and path, so every error names them:
//   contracts/x.json: rules[3].gates[0].lambda: expected a finite number >= 0, got -1
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace checkop {

/// One value of a JSON document, read only. Cheap to copy; keeps the document alive. Every reading member throws
/// InputError with where() when the value has the wrong type.
class JsonValue {
 public:
  /// Strict JSON: errors are duplicate keys in an object, comments, NaN, numbers beyond the range of double, and more
  /// than 64 nested objects and arrays. Syntax errors give line and column. `file` is only for messages.
  static JsonValue parse(std::string_view text, const std::string& file);
  /// `what` names the file in the hint: "give the path of a contract".
  static JsonValue load(const std::string& file, std::string_view what);

  std::string where() const;  ///< "contracts/x.json: rules[3].gates[0]"; the file alone for the whole document
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }  ///< "rules[3].gates[0]"

  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;

  // Objects.
  bool has(std::string_view key) const;
  JsonValue at(std::string_view key) const;  ///< a missing key is an error
  std::optional<JsonValue> find(std::string_view key) const;
  std::vector<std::pair<std::string, JsonValue>> members() const;  ///< sorted by key
  /// Throws for a key that is not in `known`, and suggests the nearest known key.
  void allow_keys(const std::vector<std::string>& known) const;

  // Arrays.
  std::vector<JsonValue> items() const;

  // Scalars. Bounds are inclusive.
  double number(double least = -std::numeric_limits<double>::max(),
                double most = std::numeric_limits<double>::max()) const;  ///< finite
  /// Accepts 3, but not 3.0 or 3e0.
  int64_t integer(int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::string string() const;    ///< may be empty
  std::string sentence() const;  ///< a string that is not blank
  bool boolean() const;
  /// A string that must be in `known`. `noun` names the kind of thing in the error: "unknown metric 'atol'".
  std::string one_of(std::string_view noun, const std::vector<std::string>& known) const;

  /// Throws unless it is the string `format`, which says what the file holds.
  void require_format(std::string_view format) const;

  /// Throws "where(): expected EXPECTED, got VALUE; HINT".
  [[noreturn]] void fail(const std::string& expected, const std::string& hint = "") const;

  const nlohmann::json& raw() const { return *value_; }

 private:
  JsonValue(std::shared_ptr<const nlohmann::json> value, std::string file, std::string path);
  std::shared_ptr<const nlohmann::json> value_;  ///< shares the ownership of the document
  std::string file_, path_;
};

/// JSON has no NaN and no infinities, so they become "NaN", "Infinity" and "-Infinity".
nlohmann::json json_number(double x);

/// The value without a line break. Bytes that are not UTF-8 are replaced.
std::string json_line(const nlohmann::json& value);

/// The bytes of a file. Throws InputError "FILE: cannot be opened: REASON; give the path of WHAT".
std::string read_text_file(const std::string& file, std::string_view what);

}  // namespace checkop
