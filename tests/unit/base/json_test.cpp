// SPDX-License-Identifier: Apache-2.0
// The typed JSON reader: its results and the exact text of its errors.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/json.hpp"

namespace checkop::json_test {
namespace {

JsonValue parse(std::string_view text) { return JsonValue::parse(text, "x.json"); }

/// The message of the InputError thrown by `body`.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(std::string_view text) {
  return error_of([&] { parse(text); });
}

TEST(Json, ReadsEveryKind) {
  const JsonValue root = parse(R"({"s": "text", "n": 1.5, "i": -3, "b": true, "a": [1, 2], "o": {"k": 7}})");
  EXPECT_EQ(root.at("s").string(), "text");
  EXPECT_EQ(root.at("n").number(), 1.5);
  EXPECT_EQ(root.at("i").integer(), -3);
  EXPECT_EQ(root.at("i").number(), -3.0);
  EXPECT_TRUE(root.at("b").boolean());
  ASSERT_EQ(root.at("a").items().size(), 2u);
  EXPECT_EQ(root.at("a").items()[1].integer(), 2);
  EXPECT_EQ(root.at("o").at("k").integer(), 7);
  EXPECT_EQ(root.members().size(), 6u);
  EXPECT_FALSE(root.find("absent"));
}

TEST(Json, AValueOutlivesTheRoot) {
  const JsonValue inner = parse(R"({"a": [{"b": "long enough to live on the heap"}]})").at("a").items()[0].at("b");
  EXPECT_EQ(inner.string(), "long enough to live on the heap");
}

TEST(Json, WhereNamesFileAndPath) {
  const JsonValue root = parse(R"({"rules": [0, {"gates": [{"lambda": 1, "an odd key": 2}]}]})");
  const JsonValue gate = root.at("rules").items()[1].at("gates").items()[0];
  EXPECT_EQ(root.where(), "x.json");
  EXPECT_EQ(gate.at("lambda").where(), "x.json: rules[1].gates[0].lambda");
  EXPECT_EQ(gate.at("an odd key").where(), R"(x.json: rules[1].gates[0]["an odd key"])");
}

TEST(Json, NumberOutOfRangeIsNamedWithItsValue) {
  const JsonValue root = parse(R"({"rules": [{"lambda": -1, "share": 1.5}]})");
  const JsonValue rule = root.at("rules").items()[0];
  EXPECT_EQ(error_of([&] { rule.at("lambda").number(0); }),
            "x.json: rules[0].lambda: expected a finite number >= 0, got -1");
  EXPECT_EQ(error_of([&] { rule.at("share").number(0, 1); }),
            "x.json: rules[0].share: expected a finite number >= 0 and <= 1, got 1.5");
}

TEST(Json, AStringIsNotANumber) {
  const JsonValue root = parse(R"({"atol": "NaN", "rtol": "1e-3", "steps": "4"})");
  EXPECT_EQ(error_of([&] { root.at("atol").number(0); }),
            "x.json: atol: expected a finite number >= 0, got \"NaN\"; write a number without quotes");
  EXPECT_EQ(error_of([&] { root.at("rtol").number(); }),
            "x.json: rtol: expected a finite number, got \"1e-3\"; write a number without quotes");
  EXPECT_EQ(error_of([&] { root.at("steps").integer(1); }),
            "x.json: steps: expected an integer >= 1, got \"4\"; write a number without quotes");
}

TEST(Json, NullAndTrueAreNotNumbers) {
  const JsonValue root = parse(R"({"a": null, "b": true})");
  EXPECT_EQ(error_of([&] { root.at("a").number(); }), "x.json: a: expected a finite number, got null");
  EXPECT_EQ(error_of([&] { root.at("b").integer(); }), "x.json: b: expected an integer, got true");
}

TEST(Json, AFractionIsNotAnInteger) {
  const JsonValue root = parse(R"([1.0, 1.5, 18446744073709551615, 9223372036854775807])");
  EXPECT_EQ(error_of([&] { root.items()[0].integer(1); }), "x.json: [0]: expected an integer >= 1, got 1.0");
  EXPECT_EQ(error_of([&] { root.items()[1].integer(1, 4); }),
            "x.json: [1]: expected an integer >= 1 and <= 4, got 1.5");
  EXPECT_EQ(error_of([&] { root.items()[2].integer(); }), "x.json: [2]: expected an integer, got 18446744073709551615");
  EXPECT_EQ(root.items()[3].integer(), std::numeric_limits<int64_t>::max());
}

TEST(Json, TheWrongKindIsNamed) {
  const JsonValue root = parse(R"({"a": [1, 2, 3], "o": {"k": 1}, "n": 5, "e": [], "f": {}})");
  EXPECT_EQ(error_of([&] { root.at("a").at("k"); }), "x.json: a: expected an object, got an array of 3");
  EXPECT_EQ(error_of([&] { root.at("o").items(); }), "x.json: o: expected an array, got an object");
  EXPECT_EQ(error_of([&] { root.at("n").string(); }), "x.json: n: expected a string, got 5");
  EXPECT_EQ(error_of([&] { root.at("e").members(); }), "x.json: e: expected an object, got an empty array");
  EXPECT_EQ(error_of([&] { root.at("f").boolean(); }), "x.json: f: expected true or false, got an empty object");
}

TEST(Json, ALongValueIsShortenedInTheMessage) {
  const JsonValue root = parse(R"({"a": ")" + std::string(500, 'z') + R"("})");
  EXPECT_LT(error_of([&] { root.at("a").number(); }).size(), 200u);
}

TEST(Json, AMissingKeyIsNamed) {
  EXPECT_EQ(error_of([] { parse(R"({"rules": [{}]})").at("rules").items()[0].at("why"); }),
            "x.json: rules[0]: key 'why' is missing; add it");
}

TEST(Json, AnUnknownKeyIsNamedWithTheNearest) {
  const JsonValue root = parse(R"({"gate": {"lamda": 6}})");
  EXPECT_EQ(error_of([&] {
              root.at("gate").allow_keys({"metric", "lambda"});
            }),
            "x.json: gate: unknown key 'lamda'; did you mean 'lambda'?");
  EXPECT_EQ(error_of([&] {
              root.allow_keys({"metric", "limit"});
            }),
            "x.json: unknown key 'gate'; keys here: metric, limit");
}

TEST(Json, AnUnknownNameIsNamedWithTheNearest) {
  const JsonValue root = parse(R"(["forwards", "sideways"])");
  EXPECT_EQ(error_of([&] {
              root.items()[0].one_of("pass", {"forward", "backward"});
            }),
            "x.json: [0]: unknown pass 'forwards'; did you mean 'forward'?");
  EXPECT_EQ(error_of([&] {
              root.items()[1].one_of("pass", {"forward", "backward"});
            }),
            "x.json: [1]: unknown pass 'sideways'; known: forward, backward");
}

TEST(Json, BlanksAreNotASentence) {
  EXPECT_EQ(error_of([] { parse(R"({"why": " \t\n"})").at("why").sentence(); }),
            R"(x.json: why: expected a sentence, got " \t\n")");
}

TEST(Json, AKeyThatAppearsTwiceIsAnError) {
  EXPECT_EQ(parse_error(R"({"a": 1, "b": 2, "a": 1})"), "x.json: key 'a' appears twice; keep one of the two");
  EXPECT_EQ(parse_error(R"({"rules": [[], {}, {"match": {"op": 1, "op": 2}}]})"),
            "x.json: rules[2].match: key 'op' appears twice; keep one of the two");
}

TEST(Json, TheSameKeyInSiblingsAndNestedObjectsIsNotTwice) {
  EXPECT_EQ(parse_error(R"([{"a": 1}, {"a": {"a": [{"a": 1}]}}])"), "no error");
}

TEST(Json, DeepNestingIsRefusedBeforeItIsRead) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + "1" + std::string(depth, ']'); };
  EXPECT_EQ(parse_error(nested(64)), "no error");
  EXPECT_TRUE(parse_error(nested(65)).ends_with("[0]: nests more than 64 deep; check the brackets"))
      << parse_error(nested(65));
  EXPECT_NE(parse_error(std::string(10'000'000, '[')).find("nests more than 64 deep"), std::string::npos);
}

TEST(Json, SyntaxErrorsGiveLineAndColumn) {
  const std::string error = parse_error("{\n  \"a\": 1,\n  \"b\": oops\n}");
  EXPECT_TRUE(error.starts_with("x.json: line 3, column 8: not valid JSON: syntax error")) << error;
  EXPECT_EQ(error.find("json.exception"), std::string::npos) << error;
}

TEST(Json, ColumnsCountCharactersNotBytes) {
  const std::string error = parse_error("{\"\xc3\xa4\xc3\xb6\": ?}");
  EXPECT_TRUE(error.starts_with("x.json: line 1, column 8:")) << error;
}

TEST(Json, LaxSyntaxIsRefused) {
  for (const char* text : {"", "  ", "{", "[1,]", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": -inf}", "{} {}",
                           "{\"a\": 1 /* c */}", "{'a': 1}", "{\"a\": 01}", "\"\xff\""})
    EXPECT_NE(parse_error(text).find("not valid JSON"), std::string::npos) << text;
}

TEST(Json, ANumberBeyondDoubleIsAnErrorWithItsPath) {
  EXPECT_TRUE(parse_error(R"({"rules": [{"a": 1, "atol": 1e999}]})")
                  .starts_with("x.json: rules[0].atol: the number is beyond the range of double"));
  EXPECT_TRUE(parse_error(R"({"list": [1, [2], -1e999]})").starts_with("x.json: list[2]: the number is beyond"));
}

TEST(Json, AMissingFileIsNamedWithTheReason) {
  EXPECT_EQ(error_of([] { JsonValue::load("/no/such/missing.json", "a contract"); }),
            "/no/such/missing.json: cannot be opened: No such file or directory; give the path of a contract");
}

TEST(Json, AFolderIsNotAFile) {
  EXPECT_EQ(error_of([] { JsonValue::load(CHECKOP_SOURCE_DIR, "a contract"); }),
            CHECKOP_SOURCE_DIR ": cannot be read: Is a directory; give the path of a contract");
}

TEST(Json, LoadReadsWhatIsInTheFile) {
  const std::string file = CHECKOP_SOURCE_DIR "/contracts/default.json";
  EXPECT_EQ(JsonValue::load(file, "a contract").at("name").string(), "default");
}

}  // namespace
}  // namespace checkop::json_test
