// SPDX-License-Identifier: Apache-2.0
// Readers of files written by people or other programs, against thousands of damaged files: each must quickly return an
// object or throw an InputError of one line. Nothing may crash, hang or exhaust the memory.
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/sweep.hpp"
#include "contract/contract.hpp"
#include "run/runner.hpp"
#include "session/saved_case.hpp"
#include "support/gold_helper.hpp"
#include "support/mutator.hpp"
#include "support/process.hpp"
#include "support/source_tree.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::fuzz_test {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestMessage = 4000;
// Seconds of a core. 100,000 cases, the most of a file, took 5.6 s under sanitizers beside other tests.
constexpr double kLongestRead = 15;

std::string read_file(const std::string& path) { return read_text_file(path, "a file"); }

/// Writes a new file: some file systems wait for the disk when a file is overwritten.
void write_file(const std::string& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A separate folder for each test: they run in parallel.
std::string scratch_folder() {
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string folder = testing::TempDir() + "fuzz_" + name;
  fs::create_directories(folder);
  return folder;
}

struct Outcomes {
  int valid = 0, refused = 0;
};

/// Reads one damaged file; `what` names it in failure messages.
void read_one(const std::function<void()>& read, const std::string& what, Outcomes& outcomes) {
  const std::clock_t start = std::clock();
  try {
    read();
    ++outcomes.valid;
  } catch (const InputError& e) {
    const std::string_view message = e.what();
    EXPECT_FALSE(message.empty()) << what;
    EXPECT_LE(message.size(), kLongestMessage) << what << ": " << message.substr(0, 200);
    EXPECT_EQ(message.find_first_of("\r\n"), std::string_view::npos) << what << ": " << message.substr(0, 200);
    ++outcomes.refused;
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << ": no InputError but " << e.what();
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kLongestRead) << what;
}

/// Reads `count` damaged copies, taken from `seeds` in turn. Both outcomes must occur: otherwise the damage is too
/// small or too large.
void fuzz_json(const std::vector<std::string>& seeds, int count, const std::function<void(const std::string&)>& read) {
  Outcomes outcomes;
  for (int i = 0; i < count; ++i) {
    const size_t seed = static_cast<size_t>(i) % seeds.size();
    const std::string text = Mutator(static_cast<uint64_t>(i)).damage_json(seeds[seed]);
    read_one([&] { read(text); }, fmt::format("file {} from seed {}", i, seed), outcomes);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(outcomes.valid, count / 100);
  EXPECT_GT(outcomes.refused, count / 4);
}

TEST(Fuzz, Contracts) {
  const InSourceTree here;
  fuzz_json({read_file("contracts/default.json"), read_file("contracts/rl_kernel.json")}, 800,
            [](const std::string& text) { Contract::parse(text, "c.json"); });
}

TEST(Fuzz, Models) {
  const InSourceTree here;
  fuzz_json({read_file("cases/models.json")}, 400,
            [](const std::string& text) { parse_models(JsonValue::parse(text, "m.json")); });
}

TEST(Fuzz, CaseFiles) {
  const InSourceTree here;
  const std::string path = scratch_folder() + "/matmul.json";
  const std::vector<std::string> seeds{
      R"({"format": "check_operator/cases-1", "why": "w", "presets": [{"why": "w", "k_dim": "hidden", "n_dim": "2*inter"},
          {"k_dim": "inter", "n_dim": "q_heads*head_dim + 2*kv_heads*head_dim"}], "cases": [
          {"op": "matmul", "preset": ["qwen3-8b", "all"], "dims": {"batch": 1, "seq": "1:64:x2"}, "dtype": "bf16"},
          {"op": ["matmul", "det_gemm"], "dims": {"seq": [1, 7], "k_dim": "3,9", "n_dim": 4}, "pass": "forward"}]})",
      R"({"format": "check_operator/cases-1", "cases": [
          {"op": "linear_logp", "dims": {"vocab": [1, 257], "seq": "2:9:3"}, "dtype": ["fp32", "bf16"], "pass": "all",
           "with": ["none", "bias"], "input_mode": "peaked", "seed": 7, "grad_mode": "ones", "grad_seed": 3},
          {"op": "grpo_loss", "dims": {"batch": 8, "group_bounds": 3}, "attrs": {"samples_per_prompt": 4, "beta": 0.04},
           "with": "group_boundaries", "suites": ["smoke", "ci"], "why": "w"},
          {"op": "rope", "dims": {"head_dim": [2, 64]}, "attrs": {"theta": 1e4}, "dtype": "fp16"},
          {"op": "silu", "input_mode": "constant", "constant_value": -80, "token_value": 1, "dims": {"hidden": 65}},
          {"op": "all", "preset": "stress-v262k", "pass": "forward"}]})",
      read_file("cases/rms_norm.json"), read_file("cases/attention.json")};
  fuzz_json(seeds, 1000, [&](const std::string& text) {
    write_file(path, text);
    load_cases(path, "");
  });
}

/// A saved case as header and data, so that they can be damaged separately.
struct SavedBytes {
  std::string header, data;

  std::string joined(uint64_t length) const {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + data;
  }
};

SavedBytes saved_bytes(const std::string& folder) {
  const Case c =
      gold_case("linear_logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 3}, {"hidden", 8}, {"vocab", 11}});
  const std::string path = save_case(folder, c, "native", "sm90", make_inputs(c, 1), make_outputs(c), 1);
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  return {bytes.substr(8, length), bytes.substr(8 + length)};
}

std::string damaged(const SavedBytes& whole, uint64_t seed) {
  Mutator mutator(seed);
  SavedBytes bytes = whole;
  uint64_t length = bytes.header.size();
  if (mutator.below(4) != 0) {
    bytes.header = mutator.damage_json(bytes.header);
    length = bytes.header.size();
  } else {
    constexpr std::array<uint64_t, 6> kLengths{0, 1, 8, 99'999'999, uint64_t{1} << 40, ~uint64_t{0}};
    if (mutator.below(2) == 0) length = kLengths[mutator.below(kLengths.size())];
    if (mutator.below(2) == 0) bytes.data.resize(mutator.below(bytes.data.size()));
    if (mutator.below(2) == 0) mutator.damage_bytes(bytes.data);
  }
  std::string all = bytes.joined(length);
  if (mutator.below(8) == 0) all.resize(mutator.below(all.size()));
  return all;
}

TEST(Fuzz, SafetensorsAndReplayedCases) {
  const std::string folder = scratch_folder(), path = folder + "/damaged.safetensors";
  const SavedBytes whole = saved_bytes(folder);
  Outcomes files, cases;
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount && !HasFailure(); ++i) {
    write_file(path, damaged(whole, static_cast<uint64_t>(i)));
    read_one([&] { read_safetensors(path); }, fmt::format("safetensors file {}", i), files);
    read_one([&] { load_case(path); }, fmt::format("saved case {}", i), cases);
  }
  EXPECT_GT(files.valid, kCount / 100);
  EXPECT_GT(files.refused, kCount / 4);
  EXPECT_GT(cases.valid, kCount / 100);
  EXPECT_GT(cases.refused, kCount / 4);
}

/// Small and large tensors, an empty one and a scalar, and names that need escapes.
std::string several_tensors(const std::string& path) {
  std::vector<Tensor> tensors;
  tensors.emplace_back("a", DType::f32, Shape{2, 3});
  tensors.emplace_back("b.weight", DType::bf16, Shape{7});
  tensors.emplace_back("\"none\"", DType::i64, Shape{0, 4});
  tensors.emplace_back("scalar", DType::f64, Shape{});
  tensors.emplace_back("mask", DType::u8, Shape{5, 1});
  write_safetensors(path, tensors, {{"format", "pt"}});
  return read_file(path);
}

TEST(Fuzz, SafetensorsOfAnySource) {
  const std::string path = scratch_folder() + "/damaged.safetensors";
  const std::string whole = several_tensors(path);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  Outcomes outcomes;
  constexpr int kCount = 3000;
  for (int i = 0; i < kCount && !HasFailure(); ++i) {
    Mutator mutator(static_cast<uint64_t>(i));
    std::string bytes = whole;
    switch (i % 4) {
      case 0:  // anywhere, the length included
        mutator.damage_bytes(bytes);
        break;
      case 1:  // in the header, whose length stays correct
        bytes = damaged({whole.substr(8, header), whole.substr(8 + header)}, static_cast<uint64_t>(i));
        break;
      case 2:  // extra data at the end, or changed bytes in the middle
        bytes.insert(mutator.below(bytes.size()), mutator.below(9), 'x');
        break;
      default:
        bytes.resize(mutator.below(bytes.size() + 1));
    }
    write_file(path, bytes);
    read_one([&] { read_safetensors(path); }, fmt::format("safetensors file {}", i), outcomes);
  }
  EXPECT_GT(outcomes.valid, kCount / 100);
  EXPECT_GT(outcomes.refused, kCount / 4);
}

// The whole program: a list of checks, or one line about the error.
TEST(Fuzz, ShippedFilesThroughTheCommandLine) {
  const InSourceTree here;
  const std::string folder = scratch_folder();
  std::vector<std::string> files{"contracts/default.json", "contracts/rl_kernel.json"};
  for (const auto& entry : fs::directory_iterator("cases")) {
    if (entry.path().filename() != "models.json") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  constexpr uint64_t kTimes = 2;
  for (const std::string& file : files) {
    const std::string seed = read_file(file), path = folder + "/" + fs::path(file).filename().string();
    for (uint64_t i = 0; i < kTimes; ++i) {
      SCOPED_TRACE(fmt::format("{} damaged with seed {}", file, i));
      write_file(path, Mutator(i).damage_json(seed));
      const std::string what = file.starts_with("contracts/") ? "--op logp --vocab 17 --contract " : "--cases ";
      const ProcessResult result = run_program(what + path + " --device cpu --candidate native --list");
      EXPECT_TRUE(result.code == 0 || result.code == 2) << result.code << " " << result.text.substr(0, 500);
      if (result.code != 2) continue;
      EXPECT_EQ(result.text.rfind("check_operator: ", 0), 0u) << result.text.substr(0, 500);
      EXPECT_EQ(std::count(result.text.begin(), result.text.end(), '\n'), 1) << result.text.substr(0, 500);
    }
  }
}

}  // namespace
}  // namespace checkop::fuzz_test
