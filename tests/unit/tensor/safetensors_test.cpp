// SPDX-License-Identifier: Apache-2.0
// Safetensors files: written tensors are read back, broken files are refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "support/contract_helper.hpp"
#include "support/message_of.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::safetensors_test {
namespace {

using contract_test::error_of;

// Tests run in parallel.
std::string path() { return testing::TempDir() + "under_test_" + std::to_string(getpid()) + ".safetensors"; }

void write_raw(uint64_t length, const std::string& header, const std::string& data) {
  std::ofstream file(path(), std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << data;
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const std::vector<float> values{1, -2, 3.5};
  const int64_t id = int64_t{1} << 60;
  {
    SafetensorsWriter file(
        path(), {{"output/y", DType::f32, {3}}, {"input/ids", DType::i64, {1, 1}}, {"empty", DType::u8, {0}}},
        {{"op", "logp"}});
    file.write("output/y", 4, &values[1], 8);
    file.write("output/y", 0, &values[0], 4);
    file.write("input/ids", 0, &id, 8);
  }
  const SafetensorsFile file = read_safetensors(path());
  EXPECT_EQ(file.metadata.at("op"), "logp");
  ASSERT_EQ(file.tensors.size(), 3u);
  const Tensor& y = *file.find("output/y");
  EXPECT_EQ(y.dtype, DType::f32);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.at(i), values[static_cast<size_t>(i)]);
  EXPECT_EQ(file.find("input/ids")->shape, (Shape{1, 1}));
  EXPECT_EQ(load_bits(DType::i64, file.find("input/ids")->bytes.data(), 0), static_cast<uint64_t>(id));
  EXPECT_EQ(read_safetensors(path(), {"input/"}).tensors.size(), 1u);
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(Safetensors, ReadsBackEveryTypeOf8And4Bits) {
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::e8m0, DType::e2m1x2}) {
    Tensor codes("codes", dtype, {2, 128});
    for (size_t i = 0; i < 256; ++i) codes.bytes.data()[i] = static_cast<std::byte>(i);
    std::vector<Tensor> all;
    all.push_back(std::move(codes));
    write_safetensors(path(), all);
    const SafetensorsFile file = read_safetensors(path());
    ASSERT_EQ(file.tensors.size(), 1U);
    EXPECT_EQ(file.tensors[0].dtype, dtype);
    EXPECT_EQ(file.tensors[0].shape, (Shape{2, 128}));
    EXPECT_EQ(std::memcmp(file.tensors[0].bytes.data(), all[0].bytes.data(), 256), 0);
  }
}

TEST(Safetensors, F4CountsNumbersOfWhichAByteHasTwo) {
  const std::string header = R"({"t": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]}})";
  write_raw(header.size(), header, "xxxxxx");
  EXPECT_EQ(read_safetensors(path()).tensors[0].shape, (Shape{3, 2}));
  write_safetensors(path(), read_safetensors(path()).tensors);
  std::ifstream file(path());
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(file), {}).find(R"("shape":[3,4])"), std::string::npos);
  for (const std::string shape : {"[4, 3]", "[]"}) {
    const std::string odd = R"({"t": {"dtype": "F4", "shape": )" + shape + R"(, "data_offsets": [0, 6]}})";
    write_raw(odd.size(), odd, "xxxxxx");
    EXPECT_NE(error_of([] {
                read_safetensors(path());
              }).find(": t: is F4 of shape " + shape + ", whose rows are no whole bytes; make the last extent even"),
              std::string::npos);
  }
}

TEST(Safetensors, BrokenFilesAreRefused) {
  const auto error = [] { return error_of([] { read_safetensors(path()); }); };
  std::ofstream(path()) << "abc";
  EXPECT_NE(error().find("is no safetensors file"), std::string::npos);
  write_raw(1000, "{}", "");
  EXPECT_NE(error().find("is no safetensors file"), std::string::npos);
  write_raw(~uint64_t{0}, "{}", "");
  EXPECT_NE(error().find("is no safetensors file"), std::string::npos);
  write_raw(2, "[]", "");
  EXPECT_NE(error().find("no JSON object"), std::string::npos);
  const auto entry = [](const std::string& text, const std::string& data) {
    const std::string header = R"({"t": )" + text + "}";
    write_raw(header.size(), header, data);
  };
  entry(R"({"dtype": "F8", "shape": [1], "data_offsets": [0, 1]})", "x");
  EXPECT_NE(error().find("'F8'"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})", "xxxx");
  EXPECT_NE(error().find("needs 8"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]})", "xxxx");
  EXPECT_NE(error().find("offsets"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})", "xxxx");
  EXPECT_NE(error(), "no error");
  entry(R"({"dtype": "F32"})", "");
  EXPECT_NE(error().find(": t: key 'shape' is missing"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [0.5], "data_offsets": [0, 4]})", "xxxx");
  EXPECT_NE(error().find(": t.shape[0]: expected an integer >= 0, got 0.5"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "dtype": "F64"})", "xxxx");
  EXPECT_NE(error().find(": t: key 'dtype' appears twice"), std::string::npos);
  entry(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]})", "xxxx");
  EXPECT_NE(error().find(": t.data_offsets: expected two offsets"), std::string::npos);
  EXPECT_NE(error_of([] { read_safetensors(testing::TempDir()); }).find("is no file"), std::string::npos);
  EXPECT_NE(error_of([] { read_safetensors("missing.safetensors"); }).find("cannot be opened"), std::string::npos);
}

TEST(Safetensors, TensorsThatOverlapAreRefused) {
  const std::string header = R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                 "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                                 "none": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}})";
  write_raw(header.size(), header, "xxxxxxxx");
  EXPECT_NE(error_of([] { read_safetensors(path()); }).find("tensors 'a' and 'b' overlap"), std::string::npos);
}

TEST(Safetensors, BytesOfNoTensorAreRefused) {
  const std::string header = R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                                 "b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}})";
  write_raw(header.size(), header, "xxxxx");
  EXPECT_NE(error_of([] { read_safetensors(path()); }).find("has 1 bytes before 'b' that belong to no tensor"),
            std::string::npos);
  const std::string one = R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})";
  write_raw(one.size(), one, "xxxx");
  EXPECT_NE(error_of([] { read_safetensors(path()); }).find("has 2 bytes at its end"), std::string::npos);
}

TEST(Safetensors, TruncatedDataAreCalledThat) {
  const std::string one = R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  write_raw(one.size(), one, "xxxx");
  EXPECT_NE(error_of([] { read_safetensors(path()); }).find("truncated"), std::string::npos);
}

TEST(Safetensors, BoolIsReadAsBytes) {
  const std::string header = R"({"mask": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}})";
  write_raw(header.size(), header, std::string("\1\0\1", 3));
  const SafetensorsFile file = read_safetensors(path());
  EXPECT_EQ(file.find("mask")->dtype, DType::u8);
  EXPECT_EQ(file.find("mask")->at(1), 0);
  EXPECT_EQ(file.find("mask")->at(2), 1);
}

TEST(Safetensors, TensorsAreReadOneAtATimeByName) {
  std::vector<Tensor> tensors;
  tensors.emplace_back("layer.0.y", DType::f32, Shape{2});
  tensors.emplace_back("layer.1.y", DType::f32, Shape{2});
  tensors.emplace_back();  // an absent tensor
  tensors[1].set(1, 2.5);
  write_safetensors(path(), tensors);
  const SafetensorsReader file(path());
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.read(file.at("layer.1.y")).at(1), 2.5);
  EXPECT_EQ(file.find("layer"), nullptr);
  EXPECT_NE(error_of([&] { file.at("layer.1.x"); }).find("holds no tensor 'layer.1.x'; did you mean"),
            std::string::npos);
}

TEST(Safetensors, FileThatIsCutWhileItIsReadIsAnError) {
  const std::string path = testing::TempDir() + "cut.safetensors";
  { SafetensorsWriter(path, {{"x", DType::f32, {2}}}, {}); }
  const SafetensorsReader reader(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  EXPECT_EQ(message_of([&] { reader.read(reader.at("x")); }),
            path + ": ends before its data do; the file is truncated; write it again");
}

TEST(Safetensors, AFullDiskIsAnError) {
  EXPECT_THROW(SafetensorsWriter("/dev/full", {}, {}), EnvironmentError);
  EXPECT_EQ(message_of([] { SafetensorsWriter("/dev/full", {}, {}); }),
            "/dev/full: cannot be written: No space left on device; make room, or give another path");
  EXPECT_EQ(message_of([] {
              SafetensorsWriter("/dev/null", {{"x", DType::f32, {2}}}, {});
            }),
            "/dev/null: cannot be written: Invalid argument; give a path that can be written");
}

TEST(Safetensors, FolderThatIsNotThereIsAnError) {
  EXPECT_NE(error_of([] { SafetensorsWriter("/nowhere/at/all.safetensors", {}, {}); }).find("cannot be created"),
            std::string::npos);
}

}  // namespace
}  // namespace checkop::safetensors_test
