// SPDX-License-Identifier: Apache-2.0
// Certificates: the same bytes in every run, detection of any changed byte, and the comparison of two certificates.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "report/bit_checks.hpp"
#include "report/certificate.hpp"
#include "support/built.hpp"
#include "support/message_of.hpp"
#include "support/process.hpp"

namespace checkop::certificate_test {
namespace {

const std::string kSmall = "--op matmul --device cpu --batch 1 --seq 40 --k-dim 64 --n-dim 16 ";

std::string path(const std::string& name) { return testing::TempDir() + "certificate_" + name; }

std::string text_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string certify(const std::string& flags, const std::string& name) {
  expect_exit(run_program(fmt::format("certify {} --out {}", flags, path(name))), 0, "Written to");
  return text_of(path(name));
}

TEST(Certificate, SecondRunWritesTheSameBytesAndVerifies) {
  const std::string first = certify(kSmall + "--candidate native", "first.json");
  EXPECT_EQ(first, certify(kSmall + "--candidate native", "again.json"));
  expect_exit(run_program("verify " + path("first.json")), 0, "1 output compared: the same bits.");
}

TEST(Certificate, EveryChangedByteIsRefused) {
  const std::string text = certify(kSmall + "--candidate native", "changed.json");
  ASSERT_NO_THROW(unseal(text, "c.json"));
  for (size_t at = 0; at < text.size(); ++at) {
    const int bit = 1 << (at % 8);
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ bit);
    EXPECT_THROW(unseal(changed, "c.json"), InputError) << at << " ^ " << bit << ": " << text.substr(at, 20);
  }
  EXPECT_THROW(unseal(text + " ", "c.json"), InputError);
  EXPECT_THROW(unseal(text.substr(0, text.size() - 1), "c.json"), InputError);
}

TEST(Certificate, ChangedFileIsABadQuestion) {
  std::string text = certify(kSmall + "--candidate native", "broken.json");
  const size_t name = text.find("native");
  ASSERT_NE(name, std::string::npos);
  text[name] ^= 1;
  std::ofstream(path("broken.json"), std::ios::binary) << text;
  expect_exit(run_program("verify " + path("broken.json")), 2, "it was changed");
}

/// The content of the certificate in `text`, edited and then sealed like certify does.
template <class Edit>
void forge(const std::string& text, const std::string& name, const Edit& edit) {
  nlohmann::json content = unseal(text, "c.json");
  edit(content);
  std::ofstream(path(name), std::ios::binary) << seal(content);
}

// Simulates kernels that differ from the certified ones.
TEST(Certificate, VerifyRunsAgainAndSaysWhatDiffers) {
  const std::string text = certify(kSmall + "--candidate native", "here.json");
  forge(text, "other_bits.json",
        [](auto& content) { content["entries"][0]["outputs"][0]["digest"] = "0123456789abcdef"; });
  const ProcessResult bits = run_program("verify " + path("other_bits.json"));
  expect_exit(bits, 1, "output c has other bits: digests 0123456789abcdef and ");
  forge(text, "other_device.json", [](auto& content) { content["device"]["multiprocessors"] = 132; });
  const ProcessResult device = run_program("verify " + path("other_device.json"));
  expect_exit(device, 0, "device: multiprocessors: 132 and ");
  EXPECT_NE(device.text.find("1 output compared: the same bits."), std::string::npos) << device.text;
}

TEST(Certificate, DifferencesAreSentences) {
  const nlohmann::json content = unseal(certify(kSmall + "--candidate native", "sentences.json"), "c.json");
  const auto differences = [&](const auto& edit) {
    nlohmann::json other = content;
    edit(other["entries"]);
    return fmt::format("{}", fmt::join(compare_certificates(content, other, false).bits, "; "));
  };
  const std::string name = "matmul/forward matmul-fp32-1x40x64x16";
  const std::string digest = content["entries"][0]["outputs"][0]["digest"];
  EXPECT_EQ(differences([](auto&) {}), "");
  EXPECT_EQ(differences([](auto& entries) { entries[0]["inputs"] = "0"; }), name + ": the inputs are others");
  EXPECT_EQ(differences([](auto& entries) { entries[0]["outputs"][0]["digest"] = "0"; }),
            name + ": output c has other bits: digests " + digest + " and 0");
  EXPECT_EQ(differences([](auto& entries) { entries.clear(); }), name + ": only in the first");
  EXPECT_EQ(differences([](auto& entries) {
              entries.push_back(entries[0]);
              entries[1]["op"] = "silu";
            }),
            "silu/forward matmul-fp32-1x40x64x16: only in the second");
}

TEST(Certificate, ContentThatIsIncompleteIsRefused) {
  nlohmann::json content = unseal(certify(kSmall + "--candidate native", "incomplete.json"), "c.json");
  content.erase("device");
  EXPECT_EQ(
      message_of([&] { unseal(seal(content), "c.json"); }),
      "c.json: lacks what a certificate has: [json.exception.out_of_range.403] key 'device' not found; give a file "
      "that 'check_operator certify --out' wrote, as it was written");
}

TEST(Certificate, NamesAxesRowsSensitivityAndTheDevice) {
  const auto content = unseal(certify(kSmall + "--candidate native", "content.json"), "c.json");
  EXPECT_EQ(content["device"]["kind"], "cpu");
  EXPECT_GE(content["device"]["multiprocessors"], 1);
  const auto& entry = content["entries"][0];
  EXPECT_EQ(entry["variants"][0]["rows"], "1-9, 13, 15-17, 20, 23-25, 27, 31-33, 39-41, 48, 64, 128");
  const auto& bits = entry["bits"][0];
  EXPECT_EQ(bits["axes"].size(), 16u);
  EXPECT_TRUE(bits["sensitivity"]["proves"]);
  EXPECT_EQ(entry["plugin"].template get<std::string>().size(), 64u);
}

TEST(Certificate, OfABrokenCandidateIsNotWritten) {
  const ProcessResult result = run_program(
      fmt::format("certify {} --candidate split_k_by_rows --plugin {}/controls/cpu/split_k_by_rows.so --out {}", kSmall,
                  kBuildFolder, path("none.json")));
  expect_exit(result, 1, "No certificate");
  EXPECT_NE(result.text.find("depend on the number of rows"), std::string::npos) << result.text;
  EXPECT_EQ(text_of(path("none.json")), "");
}

TEST(Certificate, CaseThatHadNoRoomHasNone) {
  const std::string flags = "certify --op silu --candidate native --device cpu --batch 1 --seq 4,40000 --hidden 4096";
  expect_exit(run_program(fmt::format("{} --memory-limit 512M --out {}", flags, path("skipped.json"))), 3,
              "1x40000x4096: skipped: needs ");
  EXPECT_FALSE(std::filesystem::exists(path("skipped.json")));
}

TEST(Certificate, TwoCandidatesAreComparedByTheirDigests) {
  certify(kSmall + "--candidate native", "native.json");
  certify(fmt::format("{} --candidate perfect --plugin {}/perfect.so", kSmall, kPluginFolder), "perfect.json");
  const ProcessResult both = run_program(fmt::format("verify {} {}", path("native.json"), path("perfect.json")));
  expect_exit(both, 1, "DIFFERS: matmul/forward matmul-fp32-1x40x64x16: output c has other bits");
  EXPECT_NE(both.text.find("c: row_stride: 0 elements in 3 contexts, 3 of them unsupported; and "), std::string::npos)
      << both.text;
  expect_exit(run_program(fmt::format("verify {0} {0}", path("native.json"))), 0, "1 output compared: the same bits.");
}

TEST(Certificate, OtherDataAreNoComparison) {
  certify(kSmall + "--candidate native", "data.json");
  certify(kSmall + "--candidate native --seed 7", "other.json");
  expect_exit(run_program(fmt::format("verify {} {}", path("data.json"), path("other.json"))), 1, "only in the first");
}

TEST(Certificate, IsOfOneCandidate) {
  expect_exit(run_program(fmt::format("certify {} --candidate native,perfect --plugin {}/perfect.so --out {}", kSmall,
                                      kPluginFolder, path("two.json"))),
              2, "a certificate is for one candidate");
}

TEST(Intervals, JoinNeighbours) {
  EXPECT_EQ(intervals({40, 2, 1, 3, 2, 15, 16}), "1-3, 15-16, 40");
  EXPECT_EQ(intervals({}), "");
}

}  // namespace
}  // namespace checkop::certificate_test
