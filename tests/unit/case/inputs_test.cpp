// SPDX-License-Identifier: Apache-2.0
// Random numbers and inputs. The operators here have the shapes of logp, linear_logp and matmul but are defined in this
// file, so that the golden hashes change only when inputs.cpp does.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "operator/operator.hpp"
#include "support/gold_helper.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::inputs_test {
namespace {

constexpr std::array kLogpIn{TensorSpec{"logits", "batch seq vocab", Fill::logits, "vocab"},
                             TensorSpec{"token_ids", "batch seq", Fill::ids, "vocab", DType::i64},
                             TensorSpec{"grad_logp", "batch seq", Fill::upstream, "", DType::f32}};
constexpr std::array kLinearIn{TensorSpec{"hidden", "batch seq hidden", Fill::query},
                               TensorSpec{"lm_head_weight", "vocab hidden", Fill::weight, "hidden"},
                               TensorSpec{"target_ids", "batch seq", Fill::ids, "vocab", DType::i64},
                               TensorSpec{"bias", "vocab", Fill::normal, "", {}, /*optional=*/true}};
constexpr std::array kMatmulIn{TensorSpec{"a", "batch seq k_dim"}, TensorSpec{"b", "k_dim n_dim"},
                               TensorSpec{"grad_c", "batch seq n_dim", Fill::upstream}};
constexpr std::array kPasses{Pass{"backward", kLogpIn, {}, nullptr}, Pass{"forward", kLinearIn, {}, nullptr},
                             Pass{"backward", kMatmulIn, {}, nullptr}};

constexpr Operator operator_of(std::string_view name, const Pass& pass) {
  return {name, "", "", "batch seq", {}, {&pass, 1}};
}
constexpr Operator kLogp = operator_of("test_logp", kPasses[0]), kLinear = operator_of("test_linear", kPasses[1]),
                   kMatmul = operator_of("test_matmul", kPasses[2]);

Case logp_case(int64_t rows, int64_t vocab, DType dtype = DType::f32) {
  Case c;
  c.op = &kLogp;
  c.pass = &kLogp.passes[0];
  c.dtype = dtype;
  c.dims = {{"batch", 1}, {"seq", rows}, {"vocab", vocab}};
  return c;
}

Case linear_case(int64_t rows, int64_t hidden, int64_t vocab, DType dtype = DType::f32) {
  Case c = logp_case(rows, vocab, dtype);
  c.op = &kLinear;
  c.pass = &kLinear.passes[0];
  c.dims["hidden"] = hidden;
  return c;
}

Case matmul_case(int64_t rows, int64_t k_dim, int64_t n_dim, DType dtype = DType::f32) {
  Case c;
  c.op = &kMatmul;
  c.pass = &kMatmul.passes[0];
  c.dtype = dtype;
  c.dims = {{"batch", 1}, {"seq", rows}, {"k_dim", k_dim}, {"n_dim", n_dim}};
  return c;
}

uint64_t hash_of(const Tensor& tensor) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < tensor.bytes.size(); ++i) {
    hash = (hash ^ static_cast<uint64_t>(tensor.bytes.data()[i])) * 0x100000001b3u;
  }
  return hash;
}

bool share_a_value(const Tensor& a, const Tensor& b) {
  const std::vector<double> first = values_of(a), second = values_of(b);
  const std::set<double> known(first.begin(), first.end());
  return std::any_of(second.begin(), second.end(), [&](double value) { return value != 0 && known.contains(value); });
}

TEST(Inputs, NormalsHaveTheMomentsOfANormal) {
  const Case c = matmul_case(1000, 1000, 1, DType::f64);
  double sums[5] = {};
  for (const double x : values_of(make_inputs(c, 2)[0])) {
    for (int k = 1; k <= 4; ++k) sums[k] += std::pow(x, k);
  }
  const double n = 1e6;  // tolerances are five standard deviations of each mean
  EXPECT_NEAR(sums[1] / n, 0.0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(sums[2] / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(sums[3] / n, 0.0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(sums[4] / n, 3.0, 5 * std::sqrt(96 / n));
}

TEST(Inputs, WeightsAreScaledByTheSquareRootOfTheFanIn) {
  double square = 0.0;
  for (const double w : values_of(make_inputs(linear_case(1, 1024, 100), 2)[1])) square += w * w;
  EXPECT_NEAR(square / 100, 1.0, 5 * std::sqrt(2.0 / 102400));
}

TEST(Inputs, ElementsAreTheStreamRoundedOnce) {
  const Tensor a = std::move(make_inputs(matmul_case(3, 70001, 1, DType::bf16), 2)[0]);
  const Stream stream = Stream::derive(123, "test_matmul", "a");
  for (int64_t i = 0; i < a.count(); ++i) {
    const double normal = stream.normal(static_cast<uint64_t>(i));
    std::byte expected[2];
    info(DType::bf16).encode(&normal, expected, 1);
    ASSERT_EQ(load_bits(DType::bf16, a.bytes.data(), i), load_bits(DType::bf16, expected, 0)) << i;
  }
}

// Fails on a machine or compiler that draws other bits, fuses a*b + c or rounds differently.
TEST(Inputs, BytesAreTheSameOnEveryMachine) {
  const auto hash = [](DType dtype) { return hash_of(make_inputs(matmul_case(7, 10007, 3, dtype), 2)[0]); };
  EXPECT_EQ(hash(DType::f64), 0xd1990b0322ac0ea2u);
  EXPECT_EQ(hash(DType::f32), 0xfcfb10a1ce090831u);
  EXPECT_EQ(hash(DType::f16), 0x6074e18e8dfa9f98u);
  EXPECT_EQ(hash(DType::bf16), 0x08c186562b9a5c4cu);
  EXPECT_EQ(hash_of(make_inputs(logp_case(5000, 151936 / 64), 2)[1]), 0x48b674249bc01b5du);
  Case peaked = linear_case(50, 128, 1000, DType::bf16);
  peaked.input_mode = InputMode::peaked;
  EXPECT_EQ(hash_of(make_inputs(peaked, 2)[0]), 0x3395483e20b15d63u);
}

TEST(Inputs, SameBytesForAnyThreadCount) {
  for (const InputMode mode : {InputMode::random, InputMode::constant, InputMode::integer, InputMode::peaked}) {
    Case c = logp_case(301, 1009, DType::bf16);
    c.input_mode = mode;
    const std::vector<Tensor> expected = make_inputs(c, 1);
    for (const unsigned threads : {0u, 2u, 3u, 16u}) {
      const std::vector<Tensor> actual = make_inputs(c, threads);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(hash_of(actual[i]), hash_of(expected[i])) << threads;
    }
  }
}

TEST(Inputs, RowsDoNotDependOnTheNumberOfRows) {
  for (const InputMode mode : {InputMode::random, InputMode::integer, InputMode::peaked}) {
    Case one = linear_case(1, 33, 129, DType::bf16), many = linear_case(4096, 33, 129, DType::bf16);
    one.input_mode = many.input_mode = mode;
    const std::vector<Tensor> small = make_inputs(one, 1), large = make_inputs(many, 2);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          std::equal(small[i].bytes.data(), small[i].bytes.data() + small[i].bytes.size(), large[i].bytes.data()))
          << small[i].name;
    }
  }
}

TEST(Inputs, TensorsAndNeighbouringSeedsShareNoValues) {
  Case c = matmul_case(40, 50, 60, DType::f64), next = c;
  next.seed = c.seed + 1;
  next.grad_seed = c.grad_seed + 1;
  const std::vector<Tensor> inputs = make_inputs(c, 1), others = make_inputs(next, 1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      EXPECT_EQ(share_a_value(inputs[i], inputs[k]), i == k) << inputs[i].name << " " << inputs[k].name;
      EXPECT_FALSE(share_a_value(inputs[i], others[k])) << inputs[i].name << " " << others[k].name;
    }
  }
}

TEST(Inputs, GradSeedMovesTheUpstreamGradientAlone) {
  Case c = matmul_case(4, 5, 6), other = c;
  other.grad_seed = 7;
  const std::vector<Tensor> inputs = make_inputs(c, 1), moved = make_inputs(other, 1);
  EXPECT_EQ(hash_of(inputs[0]), hash_of(moved[0]));
  EXPECT_EQ(hash_of(inputs[1]), hash_of(moved[1]));
  EXPECT_FALSE(share_a_value(inputs[2], moved[2]));
}

TEST(Inputs, GradModeOnesMakesTheUpstreamGradientOneInEveryMode) {
  for (const InputMode mode : {InputMode::random, InputMode::constant, InputMode::integer, InputMode::peaked}) {
    Case c = matmul_case(4, 5, 6, DType::bf16);
    c.grad_mode = GradMode::ones;
    c.input_mode = mode;
    for (const double value : values_of(make_inputs(c, 1)[2])) EXPECT_EQ(value, 1.0);
  }
}

TEST(Inputs, ConstantModeTellsTensorsApartByPosition) {
  Case c = linear_case(3, 4, 10);
  c.optionals = {"bias"};
  c.input_mode = InputMode::constant;
  c.token_value = -3;
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const double value : values_of(inputs[0])) EXPECT_EQ(value, 0.25);
  for (const double value : values_of(inputs[1])) EXPECT_EQ(value, static_cast<double>(0.26f));
  for (const double value : values_of(inputs[2])) EXPECT_EQ(value, 7.0);
  for (const double value : values_of(inputs[3])) EXPECT_EQ(value, static_cast<double>(0.28f));
  Case random = logp_case(3, 4), constant = random;
  constant.input_mode = InputMode::constant;
  EXPECT_EQ(hash_of(make_inputs(random, 1)[2]), hash_of(make_inputs(constant, 1)[2])) << "upstream follows grad_mode";
}

TEST(Inputs, IntegerModeDrawsEveryIntegerFromMinusFourToFourAndNothingElse) {
  for (Case c : {matmul_case(20, 30, 40, DType::bf16), linear_case(20, 30, 40, DType::f16), logp_case(600, 9)}) {
    c.input_mode = InputMode::integer;
    for (const Tensor& tensor : make_inputs(c, 2)) {
      if (tensor.name.empty() || tensor.dtype == DType::i64) continue;
      const std::vector<double> values = values_of(tensor);
      EXPECT_EQ(std::set<double>(values.begin(), values.end()), (std::set<double>{-4, -3, -2, -1, 0, 1, 2, 3, 4}))
          << tensor.name;
    }
  }
}

TEST(Inputs, AbsentOptionalInputHasNoNameAndNoMemory) {
  const std::vector<Tensor> inputs = make_inputs(linear_case(1, 2, 3), 1);
  ASSERT_EQ(inputs.size(), 4u);
  EXPECT_EQ(inputs[3].name, "");
  EXPECT_EQ(inputs[3].bytes.size(), 0u);
}

TEST(Inputs, FirstIdsAreTheEndsOfTheVocabularyAndTileEdges) {
  const std::vector<double> ids = values_of(make_inputs(logp_case(12, 5000), 1)[1]);
  EXPECT_EQ(std::vector<double>(ids.begin(), ids.begin() + 10),
            (std::vector<double>{4999, 0, 127, 128, 255, 256, 1023, 1024, 4095, 4096}));
}

TEST(Inputs, IdsStayBelowASmallVocabularyAndReachAllOfIt) {
  const std::vector<double> ids = values_of(make_inputs(logp_case(500, 10), 1)[1]);
  EXPECT_EQ(std::set<double>(ids.begin(), ids.end()), (std::set<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

/// For each of the odds 1, 9, 999 and 999999, whose rows alternate: the share of the rows whose target, of logits
/// [rows, vocab], has about these odds.
std::array<double, 4> shares_of_odds(const std::vector<double>& logits, const std::vector<double>& ids) {
  constexpr double kOdds[] = {1, 9, 999, 999999};
  const size_t vocab = logits.size() / ids.size();
  std::array<double, 4> shares{};
  for (size_t row = 0; row < ids.size(); ++row) {
    const double target = std::exp(logits[row * vocab + static_cast<size_t>(ids[row])]);
    double others = -target;
    for (size_t v = 0; v < vocab; ++v) others += std::exp(logits[row * vocab + v]);
    const double off = target / others / kOdds[row % 4];
    shares[row % 4] += off > 0.6 && off < 1.7 ? 4 / static_cast<double>(ids.size()) : 0;
  }
  return shares;
}

TEST(Inputs, PeakedLogitsGiveMostTargetsTheirOdds) {
  Case c = logp_case(800, 3000);
  c.input_mode = InputMode::peaked;
  const std::vector<Tensor> inputs = make_inputs(c, 2);
  for (const double share : shares_of_odds(values_of(inputs[0]), values_of(inputs[1]))) EXPECT_NEAR(share, 0.7, 0.12);
}

/// The logits of a linear_case().
std::vector<double> products_of(const std::vector<Tensor>& inputs) {
  const std::vector<double> h = values_of(inputs[0]), w = values_of(inputs[1]);
  const auto hidden = static_cast<size_t>(inputs[0].shape.back()), vocab = w.size() / hidden;
  const std::vector<double> b = inputs[3].name.empty() ? std::vector<double>(vocab, 0.0) : values_of(inputs[3]);
  std::vector<double> logits;
  for (size_t row = 0; row < h.size() / hidden; ++row) {
    for (size_t v = 0; v < vocab; ++v)
      logits.push_back(std::inner_product(&h[row * hidden], h.data() + (row + 1) * hidden, &w[v * hidden], b[v]));
  }
  return logits;
}

TEST(Inputs, PeakedHiddenRowsGiveMostTargetsTheirOdds) {
  for (const bool bias : {false, true}) {
    Case c = linear_case(160, 1024, 400);
    if (bias) c.optionals = {"bias"};
    c.input_mode = InputMode::peaked;
    const std::vector<Tensor> inputs = make_inputs(c, 2);
    for (const double share : shares_of_odds(products_of(inputs), values_of(inputs[2])))
      EXPECT_NEAR(share, 0.7, 0.22) << bias;
  }
}

TEST(Inputs, PeakedModeWithoutTargetsIsRandom) {
  Case c = matmul_case(4, 5, 6), peaked = c;
  peaked.input_mode = InputMode::peaked;
  const std::vector<Tensor> expected = make_inputs(c, 1), actual = make_inputs(peaked, 1);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(hash_of(actual[i]), hash_of(expected[i]));
  // A single token has probability 1 whatever its logit.
  Case single = logp_case(4, 1), peaked_single = single;
  peaked_single.input_mode = InputMode::peaked;
  EXPECT_EQ(hash_of(make_inputs(single, 1)[0]), hash_of(make_inputs(peaked_single, 1)[0]));
}

TEST(Inputs, WideSpreadsExponentsAndKeepsMantissas) {
  Case c = matmul_case(40, 50, 6), wide = c;
  wide.input_mode = InputMode::wide;
  const std::vector<double> usual = values_of(make_inputs(c, 1)[0]), spread = values_of(make_inputs(wide, 2)[0]);
  std::set<double> powers;
  for (size_t i = 0; i < usual.size(); ++i) powers.insert(std::log2(usual[i] / spread[i]));
  std::set<double> expected;
  for (int n = 0; n <= 12; ++n) expected.insert(n);
  EXPECT_EQ(powers, expected);
}

Case captured_case(std::string_view op, std::string_view pass, Dims dims, DType dtype = DType::bf16) {
  Case c;
  c.op = find_operator(op);
  c.pass = find_pass(*c.op, pass);
  c.dtype = dtype;
  c.dims = std::move(dims);
  c.input_mode = InputMode::captured;
  for (const AttrSpec& attr : c.op->attrs) c.attrs.push_back(attr.fallback);
  return c;
}

const Tensor& named(const std::vector<Tensor>& tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  if (found == tensors.end()) throw std::out_of_range(std::string(name));
  return *found;
}

/// A tensor of the shipped file.
std::vector<double> captured(const std::string& name) {
  const SafetensorsReader reader(CHECKOP_SOURCE_DIR "/cases/captured.safetensors");
  return values_of(reader.read(reader.at(name)));
}

TEST(Inputs, CapturedOnesAreTheFilesInItsOwnSizes) {
  const Case c = captured_case("rms_norm", "backward", {{"batch", 2}, {"seq", 128}, {"hidden", 256}});
  const auto inputs = make_inputs(c, 2);
  EXPECT_EQ(values_of(inputs[0]), captured("1.mlp_norm.x"));
  EXPECT_EQ(values_of(inputs[1]), captured("1.mlp_norm.weight"));
  EXPECT_EQ(values_of(named(inputs, "grad_y")), captured("1.mlp_norm.y.grad"));
  Case other_seed = c;
  other_seed.seed = c.seed + 1;
  EXPECT_EQ(hash_of(make_inputs(other_seed, 1)[0]), hash_of(inputs[0]));
}

TEST(Inputs, CapturedOnesRepeatInLargerSizesAndAreCutToSmallerOnes) {
  const std::vector<double> x = captured("1.mlp_norm.x");  // 256 rows of 256
  const auto wide =
      values_of(make_inputs(captured_case("rms_norm", "forward", {{"batch", 1}, {"seq", 258}, {"hidden", 300}}), 2)[0]);
  for (const size_t row : {0u, 255u, 256u, 257u})
    for (const size_t column : {0u, 255u, 256u, 299u})
      EXPECT_EQ(wide[row * 300 + column], x[row % 256 * 256 + column % 256]) << row << " " << column;
  const auto narrow =
      values_of(make_inputs(captured_case("rms_norm", "forward", {{"batch", 3}, {"seq", 1}, {"hidden", 5}}), 1)[0]);
  for (size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(narrow[i], x[i / 5 * 256 + i % 5]) << i;
}

TEST(Inputs, CapturedIdsAreOfTheVocabulary) {
  const auto inputs =
      make_inputs(captured_case("embedding", "forward", {{"batch", 2}, {"seq", 64}, {"vocab", 100}, {"hidden", 8}}), 1);
  const Tensor& ids = named(inputs, "token_ids");
  const std::vector<double> from = captured("token_ids");
  for (int64_t i = 0; i < ids.count(); ++i) EXPECT_EQ(ids.at(i), std::fmod(from[static_cast<size_t>(i)], 100)) << i;
}

TEST(Inputs, OfWhatWasNotCapturedAreRandom) {
  Case c = captured_case("rms_norm", "backward", {{"batch", 1}, {"seq", 4}, {"hidden", 8}});
  c.optionals = {"mask"};
  c.grad_mode = GradMode::ones;
  const auto with_captured = make_inputs(c, 1);
  c.input_mode = InputMode::random;
  const auto random = make_inputs(c, 1);
  EXPECT_NE(hash_of(with_captured[0]), hash_of(random[0]));
  for (const std::string_view other : {"mask", "grad_y"})
    EXPECT_EQ(hash_of(named(with_captured, other)), hash_of(named(random, other))) << other;
}

/// Rows of a matrix of this many columns.
std::vector<std::vector<double>> rows_of(const std::vector<double>& values, size_t columns) {
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < values.size(); i += columns) rows.emplace_back(&values[i], values.data() + i + columns);
  return rows;
}

TEST(Inputs, ExtremeLogitsAreOfTwelveKinds) {
  Case c = logp_case(24, 64), random = c;
  c.input_mode = InputMode::extreme;
  const auto extreme = rows_of(values_of(make_inputs(c, 2)[0]), 64);
  const auto plain = rows_of(values_of(make_inputs(random, 2)[0]), 64);
  const std::vector<double> ids = values_of(make_inputs(c, 2)[1]);
  for (size_t row = 0; row < 24; ++row) {
    const std::vector<double>& z = extreme[row];
    const auto target = static_cast<size_t>(ids[row]), kind = row % 12;
    const auto is_dropped = [](double x) { return std::isinf(x) && x < 0; };
    const auto dropped = static_cast<size_t>(std::count_if(z.begin(), z.end(), is_dropped));
    const auto [least, top] = std::minmax_element(z.begin(), z.end());
    if (kind < 2) {
      EXPECT_NEAR(z[5] - plain[row][5], kind == 0 ? 1e4 : -1e4, 1e-3) << row;
    }
    EXPECT_EQ(*top == *least, kind == 2) << row;
    EXPECT_TRUE(std::isfinite(z[target])) << row;
    if (kind == 3) {
      EXPECT_TRUE(dropped > 16 && dropped < 48) << row;
    } else {
      EXPECT_EQ(dropped, kind == 6 ? target : kind == 7 ? 63 - target : kind == 8 ? 63 : 0) << row;
    }
    EXPECT_EQ(z.front() == 120, kind == 4) << row;
    EXPECT_EQ(z.back() == 120, kind == 5) << row;
    EXPECT_EQ(z[target] < -100, kind == 1 || kind == 9 || (kind == 11 && z[target] < -100)) << row;
    if (kind == 10) {
      EXPECT_TRUE(std::all_of(z.begin(), z.end(), [](double x) { return std::abs(x) > 70 && std::abs(x) < 90; }))
          << row;
    }
    if (kind == 11) {
      EXPECT_TRUE(*least < -1e4 && *top > 1e4) << row;
    }
  }
}

TEST(Inputs, ExtremeProductsAreOfSevenKinds) {
  Case c = linear_case(14, 96, 200);
  c.input_mode = InputMode::extreme;
  const std::vector<Tensor> inputs = make_inputs(c, 2);
  const auto logits = rows_of(products_of(inputs), 200);
  const std::vector<double> ids = values_of(inputs[2]);
  for (size_t row = 0; row < 14; ++row) {
    const std::vector<double>& z = logits[row];
    const auto [least, top] = std::minmax_element(z.begin(), z.end());
    const size_t kind = row % 7, far = kind == 4 ? 0 : kind == 5 ? 199 : static_cast<size_t>(ids[row]);
    EXPECT_EQ(*least > 100, kind == 0) << row;
    EXPECT_EQ(*top < -100, kind == 1) << row;
    EXPECT_EQ(*least == 0 && *top == 0, kind == 2) << row;
    EXPECT_EQ(*least < -120 && *top > 120, kind == 3) << row;
    if (kind >= 4) {
      EXPECT_NEAR(z[far], 240, 0.01) << row;
      EXPECT_EQ(top - z.begin(), static_cast<std::ptrdiff_t>(far)) << row;
    }
  }
}

constexpr std::array kMaskedIn{TensorSpec{"x", "batch seq hidden", Fill::rows},
                               TensorSpec{"mask", "batch seq", Fill::mask, "", DType::u8}};
constexpr Pass kMaskedPass{"forward", kMaskedIn, {}, nullptr};
constexpr Operator kMasked = operator_of("test_masked", kMaskedPass);

Case masked_case(int64_t batch, int64_t seq) {
  Case c;
  c.op = &kMasked;
  c.pass = &kMasked.passes[0];
  c.dims = {{"batch", batch}, {"seq", seq}, {"hidden", 64}};
  return c;
}

TEST(Inputs, MasksAreScatteredOrPaddingOnEitherSideOrAll) {
  Case c = masked_case(5, 100);
  const auto masks = rows_of(values_of(make_inputs(c, 1)[1]), 100);
  for (const size_t scattered : {size_t{0}, size_t{4}}) {
    const auto zeros = std::count(masks[scattered].begin(), masks[scattered].end(), 0.0);
    EXPECT_TRUE(zeros > 5 && zeros < 45) << zeros;
    EXPECT_TRUE(std::count(masks[scattered].begin(), masks[scattered].end(), 2.0) > 0);
  }
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(masks[1][i] != 0, i >= 75) << i;
    EXPECT_EQ(masks[2][i], 0) << i;
    EXPECT_EQ(masks[3][i] != 0, i < 25) << i;
  }
  EXPECT_EQ(values_of(make_inputs(masked_case(1, 1), 1)[1]), std::vector<double>{1});
  c.ignored_every = 1;
  EXPECT_EQ(values_of(make_inputs(c, 1)[1]), std::vector<double>(500, 0.0));
  c.ignored_every = 0;
  EXPECT_EQ(values_of(make_inputs(c, 1)[1]), std::vector<double>(500, 1.0));
}

TEST(Inputs, EveryFourthOfNormalisedRowsIsSmall) {
  const auto rows = rows_of(values_of(make_inputs(masked_case(1, 8), 1)[0]), 64);
  for (size_t row = 0; row < 8; ++row) {
    const double mean = std::inner_product(rows[row].begin(), rows[row].end(), rows[row].begin(), 0.0) / 64;
    EXPECT_NEAR(mean / (row % 4 == 3 ? std::ldexp(1, -20) : 1), 1, 5 * std::sqrt(2.0 / 64)) << row;
  }
}

TEST(Inputs, EveryEighthRowOfAnUpstreamGradientIsZero) {
  Case per_row = logp_case(20, 5), c = matmul_case(20, 3, 7);
  const std::vector<double> gradient = values_of(make_inputs(per_row, 1)[2]);
  const auto rows = rows_of(values_of(make_inputs(c, 1)[2]), 7);
  for (size_t row = 0; row < 20; ++row) {
    EXPECT_EQ(gradient[row] == 0, row % 8 == 6) << row;
    EXPECT_EQ(std::count(rows[row].begin(), rows[row].end(), 0.0), row % 8 == 6 ? 7 : 0) << row;
  }
  per_row.grad_mode = GradMode::ones;
  EXPECT_EQ(values_of(make_inputs(per_row, 1)[2]), std::vector<double>(20, 1.0));
}

TEST(Inputs, SizesAreValidatedBeforeAnythingIsAllocated) {
  EXPECT_THROW(make_inputs(logp_case(4, 0), 1), InputError);
  EXPECT_THROW(make_inputs(logp_case(-1, 10), 1), InputError);
  EXPECT_EQ(make_inputs(logp_case(0, 10), 1)[0].count(), 0);          // zero rows are allowed
  const Case c = matmul_case(1, int64_t{1} << 20, int64_t{1} << 28);  // 2^50 bytes in the second tensor
  try {
    make_inputs(c, 1);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find("memory of"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace checkop::inputs_test
