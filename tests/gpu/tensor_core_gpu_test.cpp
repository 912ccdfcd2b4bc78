// SPDX-License-Identifier: Apache-2.0
// Compares the model of tensor cores with the tensor cores, on terms of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "gpu/tensor_core.cuh"
#include "tensor_core.hpp"

namespace checkop {
namespace {

constexpr size_t kProblems = 4096;  // of 128 elements each

/// Draws the stored bits of operands, and accumulators.
struct Draw {
  DType dtype;
  std::mt19937_64 random{7};

  bool bf16() const { return dtype == DType::bf16; }
  int below(int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }
  int sign() { return below(2) * 0x8000; }
  double normal() { return std::normal_distribution<double>()(random); }
  uint16_t encoded(double value) const {
    uint16_t bits;
    info(dtype).encode(&value, reinterpret_cast<std::byte*>(&bits), 1);
    return bits;
  }
  /// Any sign and fraction, with the given exponent field.
  uint16_t with_exponent(int field) {
    const int fraction = bf16() ? 7 : 10;
    return static_cast<uint16_t>(sign() | field << fraction | below(1 << fraction));
  }
  float subnormal() {
    return std::bit_cast<float>(static_cast<uint32_t>(sign()) << 16 | static_cast<uint32_t>(below(1 << 23)));
  }
};

struct Kind {
  const char* name;
  uint16_t (*factor)(Draw&);
  float (*accumulator)(Draw&);
};

const Kind kKinds[] = {
    {"normal", [](Draw& d) { return d.encoded(d.normal()); },
     [](Draw& d) { return static_cast<float>(10 * d.normal()); }},
    {"wide exponents", [](Draw& d) { return d.with_exponent(d.bf16() ? 107 + d.below(41) : 1 + d.below(30)); },
     [](Draw& d) { return static_cast<float>(std::ldexp(d.normal(), d.below(80) - 40)); }},
    {"subnormal factors",
     [](Draw& d) {
       return d.with_exponent(d.below(3) != 0 ? 0 : d.bf16() ? 120 + d.below(14) : d.below(30));
     },
     [](Draw& d) {
       return d.below(2) != 0 ? d.subnormal() : static_cast<float>(std::ldexp(d.normal(), d.below(60) - 140));
     }},
    {"subnormal sums", [](Draw& d) { return d.with_exponent(d.bf16() ? 60 + d.below(8) : d.below(3)); },
     [](Draw& d) { return d.subnormal(); }},
    {"overflow", [](Draw& d) { return d.with_exponent(d.bf16() ? 186 + d.below(8) : 28 + d.below(3)); },
     [](Draw& d) { return static_cast<float>(std::ldexp(d.normal(), 125)); }},
    {"cancelling",
     [](Draw& d) { return d.encoded(std::ldexp(1 + d.below(4) * 0.25, d.below(3) - 1) * (1 - 2 * d.below(2))); },
     [](Draw& d) { return static_cast<float>(d.below(64) - 32) / 4; }},
    {"zeros of both signs", [](Draw& d) { return static_cast<uint16_t>(d.sign()); },
     [](Draw& d) {
       return d.below(3) == 0 ? -0.0f : d.below(2) != 0 ? d.subnormal() : static_cast<float>(d.normal());
     }},
    {"few that are not zero",
     [](Draw& d) { return d.below(8) != 0 ? static_cast<uint16_t>(d.sign()) : d.encoded(d.normal()); },
     [](Draw& d) { return d.below(3) == 0 ? d.subnormal() : static_cast<float>(d.normal()); }},
    {"non-finite",
     [](Draw& d) {
       constexpr double kValues[] = {INFINITY, -INFINITY, NAN, 0, -0.0};
       const int which = d.below(100);
       return d.encoded(which < 5 ? kValues[which] : d.normal());
     },
     [](Draw& d) {
       constexpr float kValues[] = {INFINITY, -INFINITY, NAN};
       const int which = d.below(20);
       return which < 3 ? kValues[which] : static_cast<float>(d.normal());
     }},
};

TEST(TensorCoreOnGpu, ABlockHasTheBitsOfTheModelForTermsOfEveryKind) {
  ASSERT_TRUE(has_sm90()) << "the model is of sm_90";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Kind& kind : kKinds) {
      Draw draw{dtype};
      std::vector<uint16_t> x(kProblems * 256), y(kProblems * 128);
      std::vector<float> c(kProblems * 128);
      for (uint16_t& each : x) each = kind.factor(draw);
      for (uint16_t& each : y) each = kind.factor(draw);
      for (float& each : c) each = kind.accumulator(draw);
      std::vector<float> got = c;
      multiply_on_tensor_cores(dtype == DType::bf16, x, y, got);
      size_t different = 0;
      for (size_t i = 0; i < c.size(); ++i) {
        const size_t problem = i / 128, row = i / 8 % 16, column = i % 8;
        const float expected =
            tensor_core_block(dtype, &x[problem * 256 + row * 16], &y[problem * 128 + column * 16], c[i]);
        if (std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(got[i])) continue;
        if (different++ == 0) ADD_FAILURE() << "element " << i << ": " << got[i] << ", model " << expected;
      }
      EXPECT_EQ(different, 0u) << info(dtype).name << ", " << kind.name;
    }
  }
}

/// Draws codes of e4m3, and accumulators.
struct DrawCodes {
  std::mt19937_64 random{8};

  int below(int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }
  double normal() { return std::normal_distribution<double>()(random); }
  /// Any sign and fraction, with an exponent field from `first` on; no NaN.
  uint8_t code(int first = 0, int fields = 16) {
    const int size = (first + below(fields)) << 3 | below(8);
    return static_cast<uint8_t>(below(2) << 7 | (size == 0x7f ? 0x7e : size));
  }
  float scaled(int lowest, int exponents) {
    return static_cast<float>(std::ldexp(normal(), lowest + below(exponents)));
  }
};

struct KindOfCodes {
  const char* name;
  uint8_t (*factor)(DrawCodes&);
  float (*accumulator)(DrawCodes&);
};

const KindOfCodes kKindsOfCodes[] = {
    {"all codes", [](DrawCodes& d) { return d.code(); }, [](DrawCodes& d) { return d.scaled(-10, 34); }},
    {"few exponents", [](DrawCodes& d) { return d.code(6, 3); }, [](DrawCodes& d) { return d.scaled(-4, 12); }},
    {"subnormal codes", [](DrawCodes& d) { return d.below(3) != 0 ? d.code(0, 1) : d.code(); },
     [](DrawCodes& d) { return d.below(2) * d.scaled(-18, 26); }},
    {"subnormal codes alone", [](DrawCodes& d) { return d.code(0, 2); },
     [](DrawCodes& d) { return d.below(2) * d.scaled(-26, 16); }},
    {"few large ones", [](DrawCodes& d) { return d.below(16) == 0 ? d.code(13, 3) : d.code(0, 6); },
     [](DrawCodes& d) { return d.below(2) * d.scaled(-10, 20); }},
    {"cancelling", [](DrawCodes& d) { return static_cast<uint8_t>(d.below(2) << 7 | 7 << 3 | d.below(2) << 2); },
     [](DrawCodes& d) { return static_cast<float>(d.below(64) - 32) / 4; }},
    {"zeros of both signs", [](DrawCodes& d) { return static_cast<uint8_t>(d.below(2) << 7); },
     [](DrawCodes& d) { return d.below(3) == 0 ? -0.0f : d.scaled(-149, 276); }},
    {"few that are not zero",
     [](DrawCodes& d) { return d.below(8) != 0 ? static_cast<uint8_t>(d.below(2) << 7) : d.code(); },
     [](DrawCodes& d) { return d.scaled(-149, 276); }},
    {"NaN codes", [](DrawCodes& d) { return d.below(100) == 0 ? static_cast<uint8_t>(0x7f) : d.code(); },
     [](DrawCodes& d) {
       constexpr float kValues[] = {INFINITY, -INFINITY, NAN};
       const int which = d.below(20);
       return which < 3 ? kValues[which] : static_cast<float>(d.normal());
     }},
};

TEST(TensorCoreOnGpu, ABlockOfCodesHasTheBitsOfTheModelForTermsOfEveryKind) {
  ASSERT_TRUE(has_sm90()) << "the model is of sm_90";
  constexpr size_t kOfCodes = kProblems / 16;  // problems of 2048 elements
  for (const KindOfCodes& kind : kKindsOfCodes) {
    DrawCodes draw;
    std::vector<uint8_t> x(kOfCodes * 64 * 32), y(kOfCodes * 32 * 32);
    std::vector<float> c(kOfCodes * 64 * 32);
    for (uint8_t& each : x) each = kind.factor(draw);
    for (uint8_t& each : y) each = kind.factor(draw);
    for (float& each : c) each = kind.accumulator(draw);
    std::vector<float> got = c;
    multiply_codes_on_tensor_cores(x, y, got);
    size_t different = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      const size_t problem = i / 2048, row = i / 32 % 64, column = i % 32;
      const float expected =
          tensor_core_code_block(&x[(problem * 64 + row) * 32], &y[(problem * 32 + column) * 32], c[i]);
      if (std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(got[i])) continue;
      if (different++ == 0) ADD_FAILURE() << "element " << i << ": " << got[i] << ", model " << expected;
    }
    EXPECT_EQ(different, 0u) << kind.name;
  }
}

/// All terms are -0: the only sum whose sign may depend on the hardware.
TEST(TensorCoreOnGpu, ASumOfNegativeZeros) {
  const std::vector<uint16_t> x(256, 0x8000), y(128, 0);
  std::vector<float> got(128, -0.0f);
  multiply_on_tensor_cores(true, x, y, got);
  const float expected = tensor_core_block(DType::bf16, x.data(), y.data(), -0.0f);
  for (const float each : got) EXPECT_EQ(std::bit_cast<uint32_t>(each), std::bit_cast<uint32_t>(expected));
}

}  // namespace
}  // namespace checkop
