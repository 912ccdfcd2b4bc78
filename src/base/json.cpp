// SPDX-License-Identifier: Apache-2.0
// Implements the typed JSON reader: refuses duplicate keys and words the errors.
#include "base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

constexpr size_t kMaxDepth = 64;  // nesting depth of objects and arrays; no real document needs a tenth of it
constexpr size_t kMaxFileBytes = size_t{64} << 20;  // larger: a device file or a model given by mistake

/// `path` extended by a key: rules[0].match, arch_overrides["my arch"].
std::string key_path(const std::string& path, std::string_view key) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '$' || c == '-';
  });
  if (!plain) return fmt::format("{}[{}]", path, nlohmann::json(std::string(key)).dump(-1, ' ', true));
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

/// Tracks the parser's position in the document, and refuses a key that appears twice.
class ParserPosition {
 public:
  explicit ParserPosition(const std::string& file) : file_(file) {}

  bool operator()(nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_end || event == Event::array_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      Container& object = open_.back();
      object.key = parsed.get<std::string>();
      if (!object.keys.insert(object.key).second)
        throw InputError(where(path(open_.size() - 1)), fmt::format("key '{}' appears twice", object.key),
                         "keep one of the two");
    } else {
      if (!open_.empty() && open_.back().is_array) ++open_.back().index;
      if (event == Event::object_start || event == Event::array_start) {
        if (open_.size() >= kMaxDepth)
          throw InputError(where(path(open_.size())), fmt::format("nests more than {} deep", kMaxDepth),
                           "check the brackets");
        open_.push_back({event == Event::array_start});
      }
    }
    return true;
  }

  /// Position of the next value.
  std::string where_next() {
    if (!open_.empty() && open_.back().is_array) ++open_.back().index;
    return where(path(open_.size()));
  }

 private:
  struct Container {
    bool is_array;
    int64_t index = -1;  // of the latest element
    std::string key = {};
    std::set<std::string> keys = {};
  };
  std::string where(const std::string& path) const { return path.empty() ? file_ : file_ + ": " + path; }
  std::string path(size_t depth) const {
    std::string path;
    for (size_t i = 0; i < depth; ++i)
      path = open_[i].is_array ? fmt::format("{}[{}]", path, open_[i].index) : key_path(path, open_[i].key);
    return path;
  }

  const std::string& file_;
  std::vector<Container> open_;
};

[[noreturn]] void fail_syntax(std::string_view text, const std::string& file,
                              const nlohmann::json::parse_error& error) {
  const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::string_view tail = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0: the first line
  const auto column = 1 + std::count_if(tail.begin(), tail.end(),
                                        [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  // The library writes "[id] parse error at line 1, column 2: syntax error ...": keep what follows the position.
  std::string what = error.what();
  if (const size_t position = what.find("column "); position != std::string::npos)
    if (const size_t colon = what.find(": ", position); colon != std::string::npos) what = what.substr(colon + 2);
  throw InputError(fmt::format("{}: line {}, column {}", file, line, column), "not valid JSON: " + what,
                   "fix the text there; JSON has no comments, no trailing commas and no NaN");
}

std::string describe(const nlohmann::json& value) {
  if (value.is_object()) return value.empty() ? "an empty object" : "an object";
  if (value.is_array()) return value.empty() ? "an empty array" : fmt::format("an array of {}", value.size());
  std::string text = value.dump(-1, ' ', true);
  constexpr size_t kShown = 60;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

}  // namespace

JsonValue::JsonValue(std::shared_ptr<const nlohmann::json> value, std::string file, std::string path)
    : value_(std::move(value)), file_(std::move(file)), path_(std::move(path)) {}

JsonValue JsonValue::parse(std::string_view text, const std::string& file) {
  ParserPosition position(file);
  try {
    auto document = std::make_shared<const nlohmann::json>(
        nlohmann::json::parse(text, [&position](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          return position(event, parsed);
        }));
    return JsonValue(std::move(document), file, "");
  } catch (const nlohmann::json::parse_error& error) {
    fail_syntax(text, file, error);
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError(position.where_next(), "the number is beyond the range of double",
                     "write a number between -1.7e308 and 1.7e308");
  }
}

JsonValue JsonValue::load(const std::string& file, std::string_view what) {
  return parse(read_text_file(file, what), file);
}

std::string JsonValue::where() const { return path_.empty() ? file_ : file_ + ": " + path_; }

bool JsonValue::is_object() const { return value_->is_object(); }
bool JsonValue::is_array() const { return value_->is_array(); }
bool JsonValue::is_string() const { return value_->is_string(); }
bool JsonValue::is_number() const { return value_->is_number(); }

bool JsonValue::has(std::string_view key) const { return find(key).has_value(); }

JsonValue JsonValue::at(std::string_view key) const {
  if (auto value = find(key)) return *value;
  throw InputError(where(), fmt::format("key '{}' is missing", key), "add it");
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) return std::nullopt;
  return JsonValue({value_, &*found}, file_, key_path(path_, key));
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  if (!value_->is_object()) fail("an object");
  std::vector<std::pair<std::string, JsonValue>> all;
  for (const auto& [key, value] : value_->items())
    all.emplace_back(key, JsonValue({value_, &value}, file_, key_path(path_, key)));
  return all;
}

void JsonValue::allow_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : members()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string hint = did_you_mean(key, known);
    if (hint.empty())
      hint = known.empty() ? "no key is allowed here" : fmt::format("keys here: {}", fmt::join(known, ", "));
    throw InputError(where(), fmt::format("unknown key '{}'", key), hint);
  }
}

std::vector<JsonValue> JsonValue::items() const {
  if (!value_->is_array()) fail("an array");
  std::vector<JsonValue> all;
  for (const nlohmann::json& value : *value_)
    all.push_back(JsonValue({value_, &value}, file_, fmt::format("{}[{}]", path_, all.size())));
  return all;
}

double JsonValue::number(double least, double most) const {
  constexpr double kMax = std::numeric_limits<double>::max();
  const double value = value_->is_number() ? value_->get<double>() : NAN;
  if (std::isfinite(value) && value >= least && value <= most) return value;
  std::string expected = "a finite number";
  if (least > -kMax) expected += fmt::format(" >= {}", least);
  if (most < kMax) expected += fmt::format("{} <= {}", least > -kMax ? " and" : "", most);
  fail(expected, value_->is_string() ? "write a number without quotes" : "");
}

int64_t JsonValue::integer(int64_t least, int64_t most) const {
  using Limits = std::numeric_limits<int64_t>;
  const bool fits = value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(Limits::max()));
  if (fits) {
    const auto value = value_->get<int64_t>();
    if (value >= least && value <= most) return value;
  }
  std::string expected = "an integer";
  if (least > Limits::min()) expected += fmt::format(" >= {}", least);
  if (most < Limits::max()) expected += fmt::format("{} <= {}", least > Limits::min() ? " and" : "", most);
  if (least == most) expected = fmt::to_string(most);
  fail(expected, value_->is_string() ? "write a number without quotes" : "");
}

std::string JsonValue::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get<std::string>();
}

std::string JsonValue::sentence() const {
  std::string text = value_->is_string() ? value_->get<std::string>() : "";
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) fail("a sentence");
  return text;
}

bool JsonValue::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

std::string JsonValue::one_of(std::string_view noun, const std::vector<std::string>& known) const {
  std::string name = string();
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = fmt::format("known: {}", fmt::join(known, ", "));
  throw InputError(where(), fmt::format("unknown {} '{}'", noun, name), hint);
}

void JsonValue::require_format(std::string_view format) const {
  if (const std::string own = string(); own != format)
    throw InputError(where(), fmt::format("'{}' where '{}' is needed", own, format), "give a file of that format");
}

void JsonValue::fail(const std::string& expected, const std::string& hint) const {
  throw InputError(where(), fmt::format("expected {}, got {}", expected, describe(*value_)), hint);
}

nlohmann::json json_number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;
}

std::string json_line(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string read_text_file(const std::string& file, std::string_view what) {
  const std::string hint = fmt::format("give the path of {}", what);
  const auto reason = [] { return std::generic_category().message(errno); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"), &std::fclose);
  if (!stream) throw InputError(file, "cannot be opened: " + reason(), hint);
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (const size_t n = std::fread(block.data(), 1, block.size(), stream.get())) {
    text.append(block.data(), n);
    if (text.size() > kMaxFileBytes) throw InputError(file, "is larger than 64 MiB", hint);
  }
  if (std::ferror(stream.get())) throw InputError(file, "cannot be read: " + reason(), hint);
  return text;
}

}  // namespace checkop
